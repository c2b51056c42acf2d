#!/usr/bin/env python3
"""tests/python/interop.py BIN: files written here are read by the Python libraries `safetensors` and `tokenizers`, and the other way round.

BIN is the folder of the programs `based` and `safetensors_copy`. Run by ctest as check.python, with the wheels of `tools/setup check`.
"""
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy
import safetensors
import safetensors.numpy
import tokenizers

BIN = pathlib.Path(sys.argv.pop(1)).resolve()
ROOT = pathlib.Path(__file__).resolve().parents[2]
DTYPES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


def run(*command, text=None):
    return subprocess.run([str(word) for word in command], input=text, capture_output=True, text=True, check=False)


def file_of(tensors, metadata=None):
    """A file put together by hand, so that every bit pattern can stand in it: [(name, dtype, shape, bytes)]."""
    header, data = ({"__metadata__": metadata} if metadata else {}), b""
    for name, dtype, shape, content in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def contents(file):
    """{name: (dtype, shape, bytes)} as the Python library reads it; it raises where it refuses."""
    return {name: (str(t["dtype"]), list(t["shape"]), bytes(t["data"])) for name, t in safetensors.deserialize(file)}


def copies(folder, files):
    """What our program says to each file, and the copies that it wrote of those that it accepts."""
    paths = []
    for index, file in enumerate(files):
        paths.append(pathlib.Path(folder) / f"{index}.safetensors")
        paths[-1].write_bytes(file)
    said = run(BIN / "safetensors_copy", *paths)
    assert said.returncode == 0, said.stderr
    copied = [pathlib.Path(f"{path}.copy") for path in paths]
    return said.stdout.splitlines(), [path.read_bytes() if path.exists() else None for path in copied]


class Safetensors(unittest.TestCase):
    def setUp(self):
        self.random = random.Random(1)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def tensors(self):
        """Every dtype with random bits: NaNs with payloads, infinities and subnormals among them. Sorted by size, as alignment wants it."""
        made = []
        for index, (dtype, size) in enumerate(DTYPES.items()):
            for shape in ([], [3], [2, 0, 4], [2, 3, 5]):
                count = int(numpy.prod(shape, dtype=int))
                content = bytes([self.random.randrange(2) for _ in range(count)]) if dtype == "BOOL" else self.random.randbytes(count * size)
                made.append((f"{index}.{dtype}.é中.{shape}", dtype, shape, content))
        return made

    def test_theirs_is_ours_and_ours_is_theirs(self):
        theirs = file_of(self.tensors(), {"format": "pt", "note": "caf\u00e9 \"quoted\"\n"})
        wanted = contents(theirs)
        self.assertEqual(len(wanted), 4 * len(DTYPES))
        said, (ours,) = copies(self.folder, [theirs])
        self.assertEqual(said, ["ok"])
        self.assertEqual(contents(ours), wanted)
        path = pathlib.Path(self.folder) / "0.safetensors.copy"
        with safetensors.safe_open(path, framework="numpy") as file:
            self.assertEqual(file.metadata(), {"format": "pt", "note": "caf\u00e9 \"quoted\"\n"})
            self.assertEqual(set(file.keys()), set(wanted))

    def test_what_their_writer_writes(self):
        arrays = {"a.f32": numpy.linspace(-1, 1, 12, dtype=numpy.float32).reshape(3, 4), "b.i64": numpy.arange(5),
                  "c.f16": numpy.float16([[1, numpy.inf]]), "d.bool": numpy.array([True, False]), "empty": numpy.zeros((0, 2))}
        theirs = safetensors.numpy.save(arrays, {"k": "v"})
        said, (ours,) = copies(self.folder, [theirs])
        self.assertEqual(said, ["ok"])
        read = safetensors.numpy.load(ours)
        self.assertEqual(set(read), set(arrays))
        for name, array in arrays.items():
            self.assertEqual(read[name].dtype, array.dtype)
            numpy.testing.assert_array_equal(read[name], array)

    def test_bf16_bit_for_bit_through_their_writer(self):
        bits = numpy.arange(65536, dtype="<u2").tobytes()  # every bf16 that there is
        theirs = file_of([("all", "BF16", [256, 256], bits)])
        said, (ours,) = copies(self.folder, [theirs])
        self.assertEqual(said, ["ok"])
        self.assertEqual(contents(ours)["all"], contents(theirs)["all"])
        self.assertEqual(contents(ours)["all"][2], bits)

    def test_what_we_accept_they_read_the_same(self):
        """Damaged files: we may refuse more, but never read something else, or something that the library refuses."""
        whole = file_of(self.tensors()[:6], {"k": "v"})
        length = struct.unpack("<Q", whole[:8])[0]
        files = []
        for _ in range(3000):
            changed = bytearray(whole)
            for _ in range(self.random.choice((1, 1, 2, 4))):
                at = self.random.randrange(8 + length)
                kind = self.random.randrange(3)
                if kind == 0:
                    changed[at] = self.random.choice(b'0123456789[]{}",: \x00\xff')
                elif kind == 1:
                    del changed[at:at + self.random.randrange(1, 4)]
                else:
                    changed[at:at] = self.random.choice((b"0", b" ", b"1,", b'"', b"]", b"9"))
            if self.random.randrange(2):  # with a header's length that fits again
                changed[:8] = struct.pack("<Q", max(0, min(len(changed) - 8, len(changed) - len(whole) + length)))
            files.append(bytes(changed))
        said, copied = copies(self.folder, files)
        accepted = 0
        for file, answer, copy in zip(files, said, copied):
            self.assertEqual(answer == "ok", copy is not None)
            if copy is not None:
                accepted += 1
                self.assertEqual(contents(copy), contents(file))
        self.assertGreater(accepted, 20)
        self.assertGreater(len(files) - accepted, 1000)


class Tokenizers(unittest.TestCase):
    SPECIALS = ["<|endoftext|>", "<pad>"]
    TEXTS = ["", " ", "the  cat's\t mat\n\n", "naïve café — 中文 🙂 ﬁ", "a" * 500, " " * 300 + "x", "<|endoftext|> is text <pad>",
             "don't we'll I'M 12345 ½ Ⅷ", "\u00a0\u2003\u3000 x\u0085y", "\u180e\ufeff\u200b", "def f(x):\r\n\treturn x**2  # ok\r\n"]

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.corpus = sorted((ROOT / "docs").glob("*.md")) + sorted((ROOT / "based" / "data").glob("*.cpp"))
        generator = random.Random(2)
        lines = [line for path in self.corpus for line in path.read_text(encoding="utf-8").split("\n")]
        letters = [chr(c) for c in range(1, 0x3000) if chr(c).isprintable() or chr(c).isspace()]
        self.texts = self.TEXTS + lines[::7] + ["".join(generator.choices(letters, k=30)) for _ in range(300)]

    def our_ids(self, folder, special=False):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in self.texts)
        said = run(BIN / "based", "tokenize", "encode", "--tokenizer", folder, *(["--special"] if special else []), text=lines)
        self.assertEqual(said.returncode, 0, said.stderr)
        return [json.loads(line)["ids"] for line in said.stdout.splitlines()]

    def assert_agree(self, tokenizer, folder):
        """The library splits at special tokens always, which is what --special does here."""
        self.assertEqual(self.our_ids(folder, special=True), [e.ids for e in tokenizer.encode_batch(self.texts)])

    def train_here(self):
        specials = [word for special in self.SPECIALS for word in ("--special", special)]
        said = run(BIN / "based", "tokenize", "train", *self.corpus, "--format", "text", "--vocab-size", 900, *specials, "--out", self.folder / "ours")
        self.assertEqual(said.returncode, 0, said.stderr)
        return self.folder / "ours"

    def train_there(self):
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(vocab_size=900, min_frequency=2, special_tokens=self.SPECIALS, show_progress=False,
                                                 initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
        tokenizer.train([str(path) for path in self.corpus], trainer)
        (self.folder / "theirs").mkdir()
        tokenizer.save(str(self.folder / "theirs" / "tokenizer.json"))
        return tokenizer, self.folder / "theirs"

    def test_what_is_trained_here_is_read_there(self):
        ours = self.train_here()
        tokenizer = tokenizers.Tokenizer.from_file(str(ours / "tokenizer.json"))
        self.assertEqual(tokenizer.get_vocab_size(), 900)
        self.assert_agree(tokenizer, ours)
        for text in self.texts:
            self.assertEqual(tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False), text)
        # vocab.json and merges.txt, without special tokens: text that spells one is text
        plain = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(ours / "vocab.json"), str(ours / "merges.txt")))
        plain.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.assertEqual(self.our_ids(ours), [e.ids for e in plain.encode_batch(self.texts)])

    def test_what_is_trained_there_is_read_here(self):
        tokenizer, theirs = self.train_there()
        self.assert_agree(tokenizer, theirs)
        tokenizer.model.save(str(theirs))  # vocab.json and merges.txt
        os.remove(theirs / "tokenizer.json")
        self.assert_agree(tokenizer, theirs)

    def test_normalized_texts_and_added_tokens(self):
        """In the form of GPT-NeoX-20b's tokenizer: form C, and tokens for runs of spaces that are not special."""
        tokenizer, _ = self.train_there()
        tokenizer.normalizer = tokenizers.normalizers.NFC()
        tokenizer.add_tokens([tokenizers.AddedToken(" " * n, normalized=True) for n in range(24, 1, -1)])
        folder = self.folder / "neox"
        folder.mkdir()
        tokenizer.save(str(folder / "tokenizer.json"))
        generator = random.Random(3)
        marks = [chr(c) for c in range(0x300, 0x370)] + [chr(c) for c in range(0x1100, 0x1200)] + list("aeiouAEOy \u0915\u093c\u09c7\u09be\u0dd9\u0dca")
        anything = [chr(c) for c in range(0x80, 0x30000) if not 0xd800 <= c < 0xe000]
        self.texts += ["".join(generator.choices(marks, k=12)) for _ in range(2000)] + ["".join(generator.choices(anything, k=40)) for _ in range(2000)]
        self.texts += ["e\u0301", "\uac00\u11a8", "  a   b" + " " * 60 + "c \n  d<|endoftext|>   e", "\u0344\u0958\u212b\U0001d15e\U00011935\U00011930"]
        self.assert_agree(tokenizer, folder)
        self.assertEqual(len({tuple(ids) for ids in self.our_ids(folder)}), len({tokenizers.normalizers.NFC().normalize_str(t) for t in self.texts}))

    def test_both_learn_the_same(self):
        tokenizer, _ = self.train_there()
        ours = json.loads((self.train_here() / "tokenizer.json").read_text(encoding="utf-8"))
        self.assertEqual(ours["model"]["vocab"], tokenizer.get_vocab())
        self.assertEqual(ours["model"]["merges"], json.loads(tokenizer.to_str())["model"]["merges"])


if __name__ == "__main__":
    unittest.main()
