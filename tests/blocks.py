#!/usr/bin/env python3
"""Checks the code of the documents: README.md, CONTRIBUTING.md, all of docs/ and the experiments' READMEs. Needs Python 3.11.

blocks.py ROOT PROGRAM        prints each fault as file:line: reason, exits 1 if there is one. PROGRAM is `based`, whose manual page lists
                              the commands and options. No command of a document is run.
blocks.py --selftest PROGRAM  plants one fault of each kind in a temporary tree and exits 1 unless each is found
blocks.py --extract ROOT OUT  writes the C++ and C blocks for the sources of tests/install/documents, which include them: block N of PAGE
                              as OUT/PAGE.N, and its #include lines as OUT/PAGE.N.h

- Shell: blocks have bash's syntax. In blocks and in `code`, the commands, options and values of `based` exist.
- TOML and JSON are read. Keys of a training config are those of `based train --keys`; `based experiment status` plans an experiment.
- Python compiles.
- C++ and C: a source of tests/install/documents includes the block, so that the test install.consumer compiles it, or the line before the
  block is <!-- not compiled: REASON -->.
"""
import ast
import itertools
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass, field

import rules

PAGES = ["README.md", "CONTRIBUTING.md", "docs/**/*.md", "experiments/*/README.md"]
SOURCES = "tests/install/documents"
COMPILED = ("cpp", "c")
SHELL = ("sh", "bash")
OPEN = re.compile(r"( *)```(\w*)\s*$")
MARK = re.compile(r"\s*<!-- not compiled: \S.* -->$")
CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
COMMAND = re.compile(r"(?:[\w.$/~-]*/)?based")
BEGINS_WITH_COMMAND = re.compile(r"\s*(?:\w+=\S* )*(?:[\w.$/~-]*/)?based ")
HEREDOC = re.compile(r"<<-?\s*'?(\w+)'?")
PLACEHOLDER = re.compile(r"[A-Z][A-Z_]*$|.*[<…]|\.\.\.$|\*$")  # words that a reader is to replace
VARIABLE = re.compile(r"\$\w+")  # may be any number of arguments
OPERATORS = set("();<>|&")


@dataclass
class Block:
    line: int  # of its first line of code
    language: str
    text: str
    marked: bool = False  # <!-- not compiled: REASON -->


@dataclass
class Command:
    options: dict = field(default_factory=dict)  # "--name" -> the value's type, or None for a flag
    required: list = field(default_factory=list)  # options that must be given
    least: int = 0  # arguments without a name
    most: int = 0


def blocks_and_prose(text):
    """The blocks of a page, and the text outside of them with as many lines as the page."""
    lines, blocks, prose, number = text.splitlines(), [], [], 0
    while number < len(lines):
        line = lines[number]
        fence = OPEN.match(line)
        above = lines[number - 1] if number else ""
        paragraph = next((earlier for earlier in reversed(prose) if earlier.strip()), "")
        continues = above.strip() or re.match(r"\s|[-*] |\d+\. ", paragraph)  # a paragraph or an item of a list
        if fence or line.startswith("    ") and not continues:
            indent, first, code = fence[1] if fence else "    ", number + bool(fence), []
            number = first
            while number < len(lines) and (not lines[number].strip().startswith("```") if fence else
                                           lines[number].startswith("    ") or not lines[number].strip()):
                code.append(lines[number].removeprefix(indent))
                number += 1
            blocks.append(Block(first + 1, fence[2] if fence else "", "\n".join(code) + "\n", bool(MARK.match(above))))
            number += bool(fence)
            prose += [""] * (number - len(prose))
        else:
            prose.append(line)
            number += 1
    return blocks, "\n".join(prose)


def commands_of(manual):
    """The commands of `based man` by their names: "train", "tokenize encode"."""
    commands, command = {}, None
    for line in manual.replace("\\-", "-").replace("\\ ", "=").splitlines():
        plain = re.sub(r"\\f[BIR]", "", line)
        if line.startswith(".S"):
            command = commands.setdefault(plain.removeprefix(".SS based "), Command()) if line.startswith(".SS ") else None
        elif command and line.startswith(r"\fBbased"):  # the synopsis
            command.required = re.findall(r" (--[\w-]+)=", plain)
            arguments = re.findall(r" (\[?)\\fI[\w-]+\\fR(\.\.\.)?", line.replace(r" [\fIoptions\fR]", ""))
            command.least = sum(not optional for optional, _ in arguments)
            command.most = sum(1000 if repeated else 1 for _, repeated in arguments)
        elif command and (option := re.match(r"(?:(-\w), )?(--[\w-]+)(?: (\S+))?", plain)):
            command.options.update({name: option[3] for name in option.group(1, 2) if name})
    for command in commands.values():
        command.options.update({"--help": None, "-h": None})
    return commands


def without_heredocs(text):
    """The shell's lines, and [(first line from 0, text that opens it, contents)] of the heredocs, whose lines become empty."""
    lines, kept, heredocs, end = text.splitlines(), [], [], None
    for number, line in enumerate(lines):
        if end is not None:
            if line.strip() == end:
                end = None
            else:
                heredocs[-1][2].append(line)
            kept.append("")
        else:
            if opened := HEREDOC.search(line):
                end = opened[1]
                heredocs.append((number + 1, line, []))
            kept.append(HEREDOC.sub("", line))
    return kept, [(number, line, "\n".join(contents) + "\n") for number, line, contents in heredocs]


def words_of_lines(lines):
    """(line from 0, words) of each shell line; lines that continue are joined. Words of operators have only characters of OPERATORS."""
    text, first = "", 0
    for number, line in enumerate(lines):
        first = first if text else number
        text += line
        if text.endswith("\\"):
            text = text[:-1]
            continue
        lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # a quote that a later line closes
            text += "\n"
            continue
        yield first, words
        text = ""


def calls_of(words):
    """The arguments of each `based` among the words of a line; [optional ones] lose their brackets."""
    for operator, group in itertools.groupby(words, key=lambda word: bool(word) and set(word) <= OPERATORS):
        command = list(group)
        at = next((i for i, word in enumerate(command) if COMMAND.fullmatch(word)), len(command))
        if not operator and command[0] != "for" and at + 1 < len(command):
            yield [re.sub(r"^\[(.*?)\]?$|^([^\[]*)\]$", r"\1\2", word) for word in command[at + 1:]]


def fault_of_value(kind, value):
    if "$" in value or PLACEHOLDER.match(value):
        return ""
    wanted = {"INT": r"-?\d+", "NUMBER": r"-?[\d.]+(e-?\d+)?", "true|false": "true|false"}.get(kind)
    return f"{kind} is wanted, not '{value}'" if wanted and not re.fullmatch(wanted, value) else ""


def faults_of_call(commands, arguments, whole):
    """`whole`: the arguments are all that the command gets, not the beginning of a command in the text."""
    words, name = list(arguments), ""
    groups = {other.rsplit(" ", 1)[0] for other in commands if " " in other}
    while words and (longer := f"{name} {words[0]}".strip()) in commands.keys() | groups:
        name = longer
        words.pop(0)
    if words and name not in commands:
        if not words[0].startswith("-") and not PLACEHOLDER.match(words[0]):
            yield f"`based {name}".strip() + f"` has no command '{words[0]}'"
        return
    if name not in commands:
        return
    command, given, options = commands[name], 0, set()
    whole = whole and not any(word == "--help" or VARIABLE.fullmatch(word) for word in words)
    while words:
        word = words.pop(0)
        option, has_value, value = word.partition("=")
        if not word.startswith("-") or word == "-":
            given += not VARIABLE.fullmatch(word)
        elif PLACEHOLDER.match(option):
            continue
        elif option not in command.options:
            yield f"`based {name}` has no option {option}"
            return
        elif kind := command.options[option]:
            options.add(option)
            if not has_value and (not words or words[0].startswith("--")):
                if words or whole:
                    yield f"`based {name}` needs a value after {option}"
                return
            if fault := fault_of_value(kind, value if has_value else words.pop(0)):
                yield f"{option} of `based {name}`: {fault}"
        elif has_value:
            yield f"{option} of `based {name}` has no value"
    if given > command.most:
        yield f"`based {name}` has at most {command.most} arguments without a name, not {given}"
    if whole and given < command.least:
        yield f"`based {name}` needs {command.least} arguments without a name, not {given}"
    for option in command.required if whole else []:
        if option not in options:
            yield f"`based {name}` needs {option}"


class Checker:
    """Faults of code as (line of the page, reason)."""

    def __init__(self, program):
        self.program = program
        self.commands = commands_of(self.printed("man"))
        self.options = {option for command in self.commands.values() for option in command.options}
        keys = self.printed("train", "--keys") + self.printed("train", "--keys", "--classification")
        self.keys = {line.split(" = ")[0] for line in keys.splitlines()}

    def printed(self, *arguments):
        return subprocess.run([self.program, *arguments], check=True, capture_output=True, text=True).stdout

    def toml(self, text, line):
        try:
            table = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            yield line, f"no TOML: {error}"
            return
        if table.get("kind") in ("recall", "language"):
            yield from self.experiment(text, line)
        elif {"train", "data", "model", "optimizer"} & table.keys() and not isinstance(table.get("data"), str):
            for name in self.paths(table):
                if name not in self.keys and not name.startswith(("model.", "optimizer.groups.", "data.sets.")):
                    yield line, f"`based train` has no key '{name}'"

    def paths(self, table, before=""):
        for name, value in table.items():
            if isinstance(value, dict):
                yield from self.paths(value, f"{before}{name}.")
            else:
                yield before + name

    def experiment(self, text, line):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "config.toml").write_text(text, encoding="utf-8")
            command = [pathlib.Path(self.program).resolve(), "experiment", "status", "config.toml"]
            ran = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if ran.returncode:
            yield line, f"`based experiment status` refuses the config: {ran.stderr.strip()}"

    @staticmethod
    def json(text, line):
        try:
            json.loads(text)
        except json.JSONDecodeError as error:
            yield line, f"no JSON: {error}"

    @staticmethod
    def python(text, line):
        try:
            ast.parse(text)
        except SyntaxError as error:
            yield line + (error.lineno or 1) - 1, f"no Python: {error.msg}"

    def arguments_of_others(self, words, line):
        """JSON after curl's -d, and Python after -c."""
        for program, option, check in (("curl", "-d", self.json), ("python3", "-c", self.python)):
            for at, word in enumerate(words[:-1]):
                if word == option and program in words[:at] and (option == "-c" or words[at + 1].startswith("{")):
                    yield from check(words[at + 1], line)

    def calls(self, lines, line, whole=True):
        for number, words in words_of_lines(lines):
            for arguments in calls_of(words):
                for reason in faults_of_call(self.commands, arguments, whole):
                    yield line + number, reason

    def shell(self, block):
        parsed = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
        if parsed.returncode:
            yield block.line, f"no shell: {parsed.stderr.strip()}"
            return
        yield from self.script(block)

    def script(self, block):
        lines, heredocs = without_heredocs(block.text)
        yield from self.calls(lines, block.line)
        for number, words in words_of_lines(lines):
            yield from self.arguments_of_others(words, block.line + number)
        for number, opened, contents in heredocs:
            check = self.toml if ".toml" in opened else self.python if ".py" in opened else None
            if check:
                yield from check(contents, block.line + number)

    def block(self, block):
        if block.language in SHELL:
            yield from self.shell(block)
        elif block.language == "" and any(map(BEGINS_WITH_COMMAND.match, block.text.splitlines())):
            yield from self.script(block)
        elif check := {"toml": self.toml, "json": self.json, "python": self.python}.get(block.language):
            yield from check(block.text, block.line)

    def prose(self, text):
        """Commands in `code`, which need not be whole; `--option` alone is an option of some command."""
        for match in CODE.finditer(text):
            line, code = text.count("\n", 0, match.start()) + 1, re.sub(r"\s+", " ", match[1])
            first = code.split(" ")[0]
            if BEGINS_WITH_COMMAND.match(code):
                yield from self.calls([code], line, whole=False)
            elif first.startswith("--") and first.split("=")[0] not in self.options and first != "--":
                yield line, f"no command of `based` has the option {first}"
            elif first in self.commands:
                for option in re.findall(r" (--[\w-]+)", code):
                    if not any(option in command.options for name, command in self.commands.items() if f"{code} ".startswith(name + " ")):
                        yield line, f"`based {first}` has no option {option}"


def included_blocks(root):
    """The names "docs/data.md.1" that sources include."""
    names = set()
    for source in sorted((root / SOURCES).glob("*.c*")):
        names |= set(re.findall(r'^\s*#include "(\S+\.md\.\d+)"', source.read_text(encoding="utf-8"), re.M))
    return names


def pages_of(root):
    return sorted({path for pattern in PAGES for path in root.glob(pattern)})


def compiled_blocks(relative, blocks):
    """("docs/data.md.1", block) of each C++ or C block that has no mark."""
    compiled = [block for block in blocks if block.language in COMPILED and not block.marked]
    return [(f"{relative}.{number}", block) for number, block in enumerate(compiled, 1)]


def violations(root, checker):
    included, existing = included_blocks(root), set()
    for path in pages_of(root):
        relative = path.relative_to(root)
        blocks, prose = blocks_and_prose(path.read_text(encoding="utf-8"))
        for block in blocks:
            for line, reason in checker.block(block):
                yield relative, line, reason
        for line, reason in checker.prose(prose):
            yield relative, line, reason
        for name, block in compiled_blocks(relative, blocks):
            existing.add(name)
            if name not in included:
                yield relative, block.line, f"no source of {SOURCES} includes {name}; or put <!-- not compiled: REASON --> before the block"
    for name in sorted(included - existing):
        yield SOURCES, 1, f"includes {name}, which does not exist"


def extract(root, out):
    for path in pages_of(root):
        relative = path.relative_to(root)
        for name, block in compiled_blocks(relative, blocks_and_prose(path.read_text(encoding="utf-8"))[0]):
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            code = "".join("\n" if line.startswith("#include") else line for line in block.text.splitlines(keepends=True))
            (out / name).write_text(f'#line {block.line} "{path}"\n{code}', encoding="utf-8")
            includes = "".join(f"{line}\n" for line in block.text.splitlines() if line.startswith("#include"))
            (out / f"{name}.h").write_text(includes, encoding="utf-8")


def fenced(language, *lines):
    return "\n".join([f"```{language}", *lines, "```", ""])


def selftest(program):
    data = "[{length = 16, pairs = 2, examples = 8}]"
    toml = f'kind = "recall"\ntask = {{vocab_size = 64, train = {data}, test = {data}}}\n' \
           'model = {d_model = 16, layers = ["base_conv"]}\ntraining = {learning_rates = [1e-3]}\nseries = [{name = "a"}]'
    train = "[model]\npreset = \"based-tiny\"\n[train]\nsteps = 1"
    clean = "".join([
        fenced("cpp", "int compiled = 1;"), "\n<!-- not compiled: it is a part of a file -->\n", fenced("cpp", "int"),
        fenced("c", "int compiled;"),
        fenced("sh", "x=$(based inspect $model) && bin/based generate --model m \\", "  --prompt 'a (b)' $more >out  # based none", "wait"),
        fenced("", "based state save a.state --model m --prompt a   # …", "based tokenize train a.txt b.txt --out t --vocab-size=300"),
        fenced("", "a drawing ( of based nonsense"), "\n    bin/based theory verify [NAME...] [--json]\n\n",
        fenced("bash", "curl -d '{\"a\": \"'$b'\"}' x | python3 -c 'print(1)'"),
        fenced("sh", "cat >a.toml <<'END'", train, "END", "based train a.toml"),
        fenced("toml", toml), fenced("toml", train), fenced("toml", 'data = "a"'), fenced("json", '{"a": 1}'), fenced("python", "print(1)"),
        "`based tokenize`, `based train --keys`, `based COMMAND`, `--prompt`, `train --set`, `cmake --build`\n"])
    planted = {
        "command": ("`based nonsense`", "`based` has no command 'nonsense'"),
        "nested command": ("`based tokenize nonsense`", "`based tokenize` has no command 'nonsense'"),
        "option": (fenced("sh", "for i in 1; do based generate --model m --nonsense; done"), "`based generate` has no option --nonsense"),
        "indented": ("a\n\n    based mixers --nonsense\n", "`based mixers` has no option --nonsense"),
        "plain": (fenced("", "based mixers --nonsense"), "`based mixers` has no option --nonsense"),
        "option in text": ("`generate\n--nonsense x`", "`based generate` has no option --nonsense"),
        "option alone": ("`--nonsense`", "no command of `based` has the option --nonsense"),
        "value": (fenced("sh", "based generate --model m --max-tokens many"), "INT is wanted, not 'many'"),
        "missing value": (fenced("sh", "based generate --model --json"), "`based generate` needs a value after --model"),
        "missing option": (fenced("sh", "based generate --json"), "`based generate` needs --model"),
        "missing argument": (fenced("sh", "based eval compare a.json"), "`based eval compare` needs 2 arguments without a name, not 1"),
        "argument": (fenced("sh", "based man a"), "`based man` has at most 0 arguments without a name, not 1"),
        "shell": (fenced("sh", "if true; then"), "no shell"),
        "toml": (fenced("toml", "[train"), "no TOML"),
        "key": (fenced("toml", train.replace("steps", "stpes")), "`based train` has no key 'train.stpes'"),
        "key of a script": (fenced("sh", "cat >a.toml <<END", train.replace("steps", "stpes"), "END"), "no key 'train.stpes'"),
        "experiment": (fenced("toml", toml.replace("pairs", "pears")), "pears"),
        "json": (fenced("json", "{a: 1}"), "no JSON"),
        "json of a request": (fenced("sh", "curl -d '{a: 1}' x"), "no JSON"),
        "python": (fenced("python", "print("), "no Python"),
        "python of a script": (fenced("sh", "cat >a.py <<END", "print(", "END"), "no Python"),
        "c++": (fenced("cpp", "int forgotten;"), "no source of tests/install/documents includes docs/a.md.1"),
        "c++ without a reason": ("<!-- not compiled: -->\n" + fenced("cpp", "int forgotten;"), "includes docs/a.md.1"),
        "include": ("no code\n", "includes docs/a.md.2, which does not exist"),
        None: (None, None),
    }
    includes = ['#include "docs/a.md.1"\n', '#include "docs/a.md.2"\n']
    more = {"include": {f"{SOURCES}/a.cpp": includes[1]}}
    failures, checker = [], Checker(program)
    for name, (text, expected) in planted.items():
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            files = {"docs/a.md": text} if text else {"docs/a.md": clean, f"{SOURCES}/a.cpp": includes[0], f"{SOURCES}/b.c": includes[1]}
            for file, content in {**files, **more.get(name, {})}.items():
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                (root / file).write_text(content, encoding="utf-8")
            found = list(violations(root, checker))
        if expected is None and found or expected is not None and (len(found) != 1 or expected not in found[0][2]):
            failures.append(f"{name}: expected {expected or 'nothing'}, found {found}")
    print("\n".join(failures) or f"{len(planted) - 1} planted faults found, none in the clean page")
    return 1 if failures else 0


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "--extract":
        extract(pathlib.Path(sys.argv[2]).resolve(), pathlib.Path(sys.argv[3]))
    elif len(sys.argv) == 3 and sys.argv[1] == "--selftest":
        sys.exit(selftest(sys.argv[2]))
    elif len(sys.argv) == 3:
        sys.exit(rules.check(violations(pathlib.Path(sys.argv[1]).resolve(), Checker(sys.argv[2]))))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
