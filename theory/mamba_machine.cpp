#include "theory/mamba_machine.h"

#include "based/core/error.h"

namespace based::theory {
namespace {

using Row = std::vector<int64_t>;

Row embedding(const MambaSizes& sizes, int64_t token) {
  const int64_t n = sizes.states;
  Row row(static_cast<size_t>(sizes.model_dim()));
  if (token < sizes.keys()) {
    row[static_cast<size_t>(token / n)] = 1;
    row[static_cast<size_t>(n + token % n)] = 1;
  } else {
    for (int64_t k = 2 * n; k < 3 * n; ++k) row[static_cast<size_t>(k)] = token - sizes.keys();
  }
  return row;
}

// Linear maps of a row: B̄ and C select the columns of a; 2Δ and the gate move the columns of b to the value's channels.
Row select_a(const MambaSizes& sizes, const Row& u) { return {u.begin(), u.begin() + sizes.states}; }
Row move_b(const MambaSizes& sizes, const Row& u) {
  Row moved(u.size());
  for (int64_t k = 0; k < sizes.states; ++k) moved[static_cast<size_t>(2 * sizes.states + k)] = u[static_cast<size_t>(sizes.states + k)];
  return moved;
}

int64_t entry(const Bytes& state, size_t at) { return static_cast<int8_t>(state[at]); }

// The state has one byte per entry: h[d, n], followed by the previous row.
Bytes step(const MambaSizes& sizes, const Bytes& state, int64_t token) {
  const auto entries = static_cast<size_t>(sizes.state_entries());
  Row before;
  for (size_t at = entries; at < state.size(); ++at) before.push_back(entry(state, at));
  const Row u = embedding(sizes, token), b = select_a(sizes, before), steps = move_b(sizes, before);
  Bytes next = state;
  for (size_t j = 0; j < u.size(); ++j) {
    for (size_t k = 0; k < b.size() && steps[j] != 0; ++k) {
      const int64_t h = -entry(state, j * b.size() + k) + b[k] * u[j];
      BASED_ASSERT(h >= -1 && h <= 1);
      next[j * b.size() + k] = static_cast<char>(h);
    }
    next[entries + j] = static_cast<char>(u[j]);
  }
  return next;
}

int64_t answer(const MambaSizes& sizes, const Bytes& state, int64_t query) {
  const Row u = embedding(sizes, query), c = select_a(sizes, u), gate = move_b(sizes, u);
  int64_t sum = 0;
  for (size_t j = 0; j < gate.size(); ++j) {
    int64_t z = 0;
    for (size_t k = 0; k < c.size(); ++k) z += c[k] * entry(state, j * c.size() + k);
    sum += gate[j] * (z < 0 ? -z : z);
  }
  return sizes.keys() + sum;
}

}  // namespace

RecurrentMachine mamba_machine(const MambaSizes& sizes) {
  BASED_ASSERT(sizes.states >= 2 && sizes.states % 2 == 0);
  RecurrentMachine machine;
  machine.name = "Mamba";
  machine.message_bits = 2 * sizes.state_entries() + sizes.model_dim();
  machine.initial = [sizes] { return Bytes(static_cast<size_t>(sizes.state_entries() + sizes.model_dim()), 0); };
  machine.step = [sizes](const Bytes& state, int64_t token, int64_t) { return step(sizes, state, token); };
  machine.answer = [sizes](const Bytes& state, int64_t query) { return answer(sizes, state, query); };
  return machine;
}

}  // namespace based::theory
