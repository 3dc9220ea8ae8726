"""A grid of Flower in this process: real apps and real records, everything serialised; nodes may fail."""

from __future__ import annotations

from types import SimpleNamespace

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from coterie.deployment.flower.app import FlowerTransport, client


def travelled(value):
    """A message or record as it arrives: each object through bytes, as Flower sends it."""
    children = {key: travelled(child) for key, child in (value.children or {}).items()}
    return type(value).inflate(value.deflate(), children or None)


class MemoryGrid(Grid):
    """Nodes by name. ``fault(name, call)`` says what goes wrong: "error", "late", "lost", "left", "anew" or nothing."""

    def __init__(self, receivers, fault=lambda name, call: ""):
        # Flower sets who we are in the processes it starts; messages cannot be made without.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.apps = {
            name: client(lambda context, name=name, receive=receive: (name, receive))
            for name, receive in receivers.items()
        }
        self.numbers = {name: 100 + i for i, name in enumerate(receivers)}
        self.since = dict.fromkeys(receivers, "once")
        self.fault, self.calls = fault, 0
        self.replies, self.late, self.carried = {}, {}, []

    def set_run(self, run):
        raise NotImplementedError

    run = None
    create_message = send_and_receive = set_run

    def get_node_ids(self):
        return list(self.numbers.values())

    def get_nodes(self):
        return [
            SimpleNamespace(node_id=number, name=name, last_activated_at=self.since[name])
            for name, number in self.numbers.items()
        ]

    def push_messages(self, messages):
        self.calls += 1
        self.replies |= self.late  # what came too late is there for whoever asks for the new ones
        ids = []
        for message in messages:
            number = message.object_id
            message.metadata.__dict__["_message_id"] = number  # as Flower's own grid does
            ids.append(number)
            arrived = travelled(message)
            arrived.metadata.__dict__["_message_id"] = number
            self._deliver(arrived)
        return ids

    def _deliver(self, message):
        name = next(n for n, number in self.numbers.items() if number == message.metadata.dst_node_id)
        fault = self.fault(name, self.calls)
        if fault == "error":
            reply = Message(Error(code=1, reason="the client process ended"), reply_to=message)
        elif fault == "left":
            del self.numbers[name]
            return
        elif fault in ("lost", "anew"):
            self.since[name] += " and again" * (fault == "anew")
            return
        else:
            context = Context(1, message.metadata.dst_node_id, {}, RecordDict(), {})
            try:
                reply = self.apps[name](message, context)
            except Exception as problem:  # as the process of a ClientApp does
                reply = Message(Error(code=2, reason=str(problem)), reply_to=message)
        self.carried.append((name, message, reply))
        (self.late if fault == "late" else self.replies)[message.metadata.message_id] = travelled(reply)

    def pull_messages(self, message_ids):
        return [self.replies.pop(number) for number in message_ids if number in self.replies]


def transport(receivers, fault=lambda name, call: "", **options):
    """A transport over such a grid, which waits for nothing."""
    quick = {"sites": list(receivers), "join": 0.0, "poll": 0.001, "look": 0.01}
    return FlowerTransport(MemoryGrid(receivers, fault), **quick | options)
