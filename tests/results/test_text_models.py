import numpy as np
import pytest

import coterie

torch = pytest.importorskip("torch")


class Unmasked(torch.nn.Module):
    """The mean over all places, padded ones too."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(20, 3), torch.nn.Linear(3, 2)

    def forward(self, ids):
        return self.head(self.embedding(ids).mean(-2))


@pytest.mark.parametrize("longest_is", ["train", "test"])
def test_without_a_mask_rows_are_padded_alike_whoever_is_asked_beside(longest_is, tmp_path):
    rng = np.random.default_rng(0)
    split = np.tile(["train", "train", "test"], 8)
    notes = [rng.integers(1, 20, 7 if k == list(split).index(longest_is) else 2 + k % 3) for k in range(24)]
    rows = {"X": notes, "y": np.arange(24) % 2, "client": np.repeat(["a", "b"], 12), "split": split}
    result = coterie.fit(rows, coterie.Torch(Unmasked), method="fedavg", rounds=2)
    net = result.module("a")
    padded = torch.tensor([[3, 4, 0, 0, 0, 0, 0], [5, 0, 0, 0, 0, 0, 0]])  # to 7, the longest of train and test
    expected = torch.softmax(net(padded), 1).detach().numpy()
    np.testing.assert_allclose(result.predict_proba([[3, 4], [5]], "a"), expected, atol=1e-6)
    np.testing.assert_allclose(result.predict_proba([[3, 4]], "a"), expected[:1], atol=1e-6)
    held = [k for k in range(24) if split[k] == "test"]
    answers = [result.predict([notes[k]], rows["client"][k])[0] for k in held]
    assert np.mean(np.array(answers) == rows["y"][held]) == pytest.approx(result.comparison.loc["fedavg", "accuracy"])
    result.save(tmp_path / "m")
    loaded = coterie.load(tmp_path / "m", model=Unmasked)
    np.testing.assert_allclose(loaded.predict_proba([[5]], "a"), expected[1:], atol=1e-6)
    with pytest.raises(coterie.CoterieError, match=r"has 8 numbers, and the model, .* padded to 7: cut it to 7"):
        loaded.predict([[1] * 8], "a")
