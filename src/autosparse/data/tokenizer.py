"""One byte-pair encoding for both languages, trained on the training split and kept in a cache."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autosparse.common.files import write_text
from autosparse.common.packages import need
from autosparse.data.pairs import Pairs

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PADDING_ID, START_ID, END_ID, UNKNOWN_ID = range(4)
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]


def _library() -> Any:
    return need("tokenizers", "translation data", "text")


@dataclass(frozen=True)
class Text:
    """The tokenizer, and the raw sentences that translations are scored with."""

    tokenizer: Tokenizer
    lowercase: bool = False
    sources: Mapping[str, Sequence[str]] = field(default_factory=dict)
    references: Mapping[str, Sequence[str]] = field(default_factory=dict)
    start_id: int = START_ID
    end_id: int = END_ID
    padding_id: int = PADDING_ID

    @property
    def vocabulary(self) -> int:
        """Pieces, special ones included; less than asked for where the text has no more."""
        return int(self.tokenizer.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """The pieces of a sentence, without start and end."""
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """The same for many sentences at once."""
        return [one.ids for one in self.tokenizer.encode_batch_fast([text.strip() for text in texts], add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """The sentence of some pieces: up to the end token, other special tokens left out."""
        pieces = [int(piece) for piece in ids]
        if self.end_id in pieces:
            pieces = pieces[: pieces.index(self.end_id)]
        return str(self.tokenizer.decode(pieces, skip_special_tokens=True)).strip()

    def save(self, path: Path) -> None:
        """Write the tokenizer as JSON that the tokenizers library reads, whole or not at all."""
        write_text(path, self.tokenizer.to_str(pretty=True))


def open_tokenizer(pairs: Pairs, vocabulary: int, lowercase: bool, cache: Path | None = None) -> Tokenizer:
    """The encoding of these pairs: from the cache if the same text and settings were used before, else trained."""
    path = (cache or default_cache()) / f"bpe-{_fingerprint(pairs, vocabulary, lowercase)}.json"
    if not path.exists():
        trained = train_tokenizer(pairs, vocabulary, lowercase)
        try:
            write_text(path, trained.to_str())
        except OSError as error:
            warnings.warn(
                f"the tokenizer could not be saved in {path.parent} ({error}) and will be trained again", stacklevel=2
            )
            return _prepared(trained)
    # read back even when just written: every process then uses one and the same file
    return read_tokenizer(path)


def read_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer that was written before."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no tokenizer {path}")
    try:
        return _prepared(_library().Tokenizer.from_file(str(path)))
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # the library raises nothing narrower, and its panics are no Exceptions
        raise ValueError(f"the tokenizer {path} is damaged ({error}); delete it, a new run will make it again") from error


def default_cache() -> Path:
    """$XDG_CACHE_HOME/autosparse, or ~/.cache/autosparse."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "autosparse"


def train_tokenizer(pairs: Pairs, vocabulary: int, lowercase: bool) -> Tokenizer:
    """Byte-pair encoding over bytes: every text can be written with it and read back."""
    library = _library()
    byte_level = library.pre_tokenizers.ByteLevel
    tokenizer: Tokenizer = library.Tokenizer(library.models.BPE(unk_token=SPECIAL[UNKNOWN_ID]))
    if lowercase:
        tokenizer.normalizer = library.normalizers.Lowercase()
    tokenizer.pre_tokenizer = byte_level(add_prefix_space=True)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(byte_level.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sentences(pairs), trainer)
    return tokenizer


def _prepared(tokenizer: Tokenizer) -> Tokenizer:
    # "<s>" written in a sentence is text like any other, never the start token
    tokenizer.encode_special_tokens = True
    return tokenizer


def _sentences(pairs: Pairs) -> Iterator[list[str]]:
    for sources, targets in pairs.pieces():
        yield sources
        yield targets


def _fingerprint(pairs: Pairs, vocabulary: int, lowercase: bool) -> str:
    digest = hashlib.sha256(f"byte-level 1, {vocabulary}, {lowercase}, {pairs.count}".encode())
    for sentences in _sentences(pairs):
        digest.update("\n".join(sentences).encode("utf-8", "surrogatepass"))
        digest.update(b"\0")
    return digest.hexdigest()[:20]
