"""For the tools that test `based serve` by programs from PyPI: test-serving and test-page."""
import contextlib
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BASED = ROOT / "bin" / "based"
_NAME = pathlib.Path(sys.argv[0]).name


def say(text):
    print(f"{_NAME}: {text}", flush=True)


def run(command, **more):
    """The standard output of a command. Ends the program if the command fails."""
    result = subprocess.run([str(word) for word in command], text=True, capture_output=True, check=False, **more)
    if result.returncode != 0:
        raise SystemExit(f"{_NAME}: {' '.join(map(str, command))} ended with {result.returncode}\n{result.stdout[-2000:]}\n{result.stderr[-4000:]}")
    return result.stdout


def install(folder, packages):
    """The Python of an environment in `folder` that has exactly these packages. Installs them if they are not there."""
    python, mark, wanted = folder / "bin" / "python", folder / "installed", "\n".join(packages)
    if not mark.exists() or mark.read_text() != wanted:
        say("installing " + ", ".join(packages))
        shutil.rmtree(folder, ignore_errors=True)
        run([sys.executable, "-m", "venv", folder])
        run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages])
        mark.write_text(wanted)
    return python


@contextlib.contextmanager
def serve(model, log, *options):
    """The address of a server that runs for the length of the context and writes its log to a file."""
    with log.open("w") as errors:
        server = subprocess.Popen([str(BASED), "serve", "--model", str(model), "--port", "0", *options], stdout=subprocess.PIPE, stderr=errors,
                                  text=True)
    try:
        address = server.stdout.readline().strip()  # printed when the model is loaded
        if not address:
            raise SystemExit(f"{_NAME}: the server ended with code {server.wait()}\n{log.read_text()[-2000:]}")
        yield address
    finally:
        server.terminate()
        server.wait()
