"""Trains a small Based model on the bytes of a text file, on a CPU in about a minute, and continues a text from a saved state.

    python train_based.py train FILE --out FOLDER      writes FOLDER/model.pt, and the state after the first bytes of the file
    python train_based.py continue FOLDER              reads that state in place of the text, and generates
"""
import argparse
import pathlib
import sys

import torch
from based_cpp import nn, ops

D_MODEL, LENGTH, BATCH = 128, 128, 16
MIXERS = [lambda: nn.GatedConv(D_MODEL, layers=4), lambda: nn.TaylorAttention(D_MODEL, heads=4, feature_dim=8, layers=4),
          lambda: nn.SlidingWindow(D_MODEL, window=32, heads=4, layers=4), lambda: nn.GatedConv(D_MODEL, layers=4)]


class Block(torch.nn.Module):
    def __init__(self, mixer):
        super().__init__()
        self.mixer, self.norms = mixer, torch.nn.ModuleList(torch.nn.RMSNorm(D_MODEL, eps=1e-5) for _ in range(2))
        self.mlp_in, self.mlp_out = torch.nn.Linear(D_MODEL, 4 * D_MODEL, bias=False), torch.nn.Linear(2 * D_MODEL, D_MODEL, bias=False)

    def forward(self, x, mix):
        x = x + mix(self.mixer, self.norms[0](x))
        return x + self.mlp_out(ops.swiglu(self.mlp_in(self.norms[1](x))))


class Based(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Parameter(0.02 * torch.randn(256, D_MODEL))
        self.blocks = torch.nn.ModuleList(Block(make()) for make in MIXERS)
        self.norm = torch.nn.RMSNorm(D_MODEL, eps=1e-5)

    def forward(self, tokens, states=None):  # tokens [batch, length]; with states, a step
        x = self.embedding[tokens]
        for i, block in enumerate(self.blocks):
            x = block(x, lambda mixer, y: mixer(y) if states is None else mixer.step(y, states[i]))
        return self.norm(x)


def tokens_of(data, device):
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).long().to(device)


def train(model, text, steps):
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        rows = torch.stack([text[i : i + LENGTH + 1] for i in torch.randint(len(text) - LENGTH, (BATCH,)).tolist()])
        loss = ops.cross_entropy(model(rows[:, :-1]).flatten(0, 1), model.embedding, rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step}: {loss.item():.3f}", file=sys.stderr)


@torch.no_grad()
def generate(model, states, text, count):
    hidden, generated = model(text[None], states)[:, -1], []
    for _ in range(count):
        token = torch.multinomial((hidden @ model.embedding.T / 0.7).softmax(1), 1)
        generated.append(token.item())
        hidden = model(token, states)[:, -1]
    return bytes(generated).decode(errors="replace")


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("action", choices=["train", "continue"])
parser.add_argument("path", type=pathlib.Path, help="train: a text file; continue: the folder of --out")
parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/bytes"), help="train: the folder for the model and the state")
parser.add_argument("--steps", type=int, default=300, help="train: optimizer steps")
parser.add_argument("--text", default="\n", help="continue: text to read first, from the saved state")
parser.add_argument("--tokens", type=int, default=200, help="continue: bytes to generate")
parser.add_argument("--device", default="cpu", help="cpu or cuda")
arguments = parser.parse_args()

torch.manual_seed(0)
model = Based().to(arguments.device)
if arguments.action == "train":
    text = tokens_of(arguments.path.read_bytes(), arguments.device)
    train(model, text, arguments.steps)
    states = [block.mixer.make_state(1) for block in model.blocks]
    generate(model, states, text[:LENGTH], 0)
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), arguments.out / "model.pt")
    for i, state in enumerate(states):
        (arguments.out / f"state-{i}.safetensors").write_bytes(state.to_bytes())
    print(f"{sum(state.nbytes for state in states)} bytes of state after {states[0].tokens} tokens", file=sys.stderr)
else:
    model.load_state_dict(torch.load(arguments.path / "model.pt", map_location=arguments.device))
    files = [arguments.path / f"state-{i}.safetensors" for i in range(len(model.blocks))]
    states = [nn.State.from_bytes(file.read_bytes()).to(arguments.device) for file in files]
    print(generate(model, states, tokens_of(arguments.text.encode(), arguments.device), arguments.tokens))
