"""
What fewer bytes cost
=====================

Accuracy against the bytes that clients send, by how their updates are written. Total variation (`tv`) says with a few
per cent of the bytes nearly what whole numbers say; what is lost shows on the vertical axis.
"""

import matplotlib.pyplot as plt

import coterie

codecs = ["none", "qsgd:8", "qsgd:4", "tv:4", "tv:2", "topk:0.1"]
for codec in codecs:
    result = coterie.fit(
        "digits",
        coterie.Torch("softmax"),
        partition={"partition": "dirichlet", "clients": 12, "alpha": 0.5, "rows": 800},
        method="fedavg",
        rounds={"rounds": 30, "eta": 0.5, "up": codec},
    )
    accuracy, sent = 100 * result.comparison["accuracy"]["fedavg"], result.ledger["bytes_up"] / 1e3
    plt.scatter(sent, accuracy, color="tab:blue")
    plt.annotate(codec, (sent, accuracy), xytext=(4, 4), textcoords="offset points")
plt.xscale("log")
plt.margins(x=0.15)
plt.ylim(80, 100)
plt.xlabel("kilobytes sent by 12 clients in 30 rounds")
plt.ylabel("held-out digits that are classified rightly (%)")
plt.title("12 clients, softmax: a dot for each codec")
plt.show()
