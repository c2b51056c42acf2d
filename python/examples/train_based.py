"""Trains a small Based model on the bytes of a text file, on a CPU in about a minute, and continues a text from its state.

    python train_based.py FILE [STEPS]
"""
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


text = torch.frombuffer(bytearray(open(sys.argv[1], "rb").read()), dtype=torch.uint8).long()
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 300
torch.manual_seed(0)
model = Based()
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

with torch.no_grad():
    states = [block.mixer.make_state(1) for block in model.blocks]
    hidden, generated = model(text[None, :LENGTH], states)[:, -1], []
    for _ in range(200):
        token = torch.multinomial((hidden @ model.embedding.T / 0.7).softmax(1), 1)
        generated.append(token.item())
        hidden = model(token, states)[:, -1]
    print(f"{sum(state.nbytes for state in states)} bytes of state after {states[0].tokens} tokens", file=sys.stderr)
    print(bytes(generated).decode(errors="replace"))
