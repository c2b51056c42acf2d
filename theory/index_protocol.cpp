#include "theory/index_protocol.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "based/core/error.h"
#include "based/core/random.h"

namespace based::theory {
namespace {

constexpr int64_t kMostBits = 20;  // the limit on an input's length when all inputs are tried

Bits bits_of(uint64_t number, int64_t length) {
  Bits bits(static_cast<size_t>(length));
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = number >> i & 1;
  return bits;
}

// A memory of one-bit cells. `write` updates them for a pair, and `cell` returns the cell that answers a key. Between a key and its value
// the state also holds the key.
struct CellMemory {
  std::string name;
  int64_t length, cells;
  std::function<void(Bytes& cells, int64_t key, char value)> write;
  std::function<int64_t(int64_t key)> cell;  // −1: none
};

RecurrentMachine machine_of(const CellMemory& memory) {
  constexpr size_t kKeyBytes = 2;
  RecurrentMachine machine;
  machine.name = memory.name;
  machine.message_bits = memory.cells;
  machine.initial = [cells = memory.cells] { return Bytes(static_cast<size_t>(cells), 0); };
  machine.step = [memory](const Bytes& state, int64_t token, int64_t) {
    Bytes next = state;
    if (token < memory.length) {
      next.push_back(static_cast<char>(token & 255));
      next.push_back(static_cast<char>(token >> 8));
      return next;
    }
    BASED_ASSERT(state.size() == static_cast<size_t>(memory.cells) + kKeyBytes);
    const int64_t key = static_cast<uint8_t>(state[state.size() - 2]) + 256 * static_cast<uint8_t>(state[state.size() - 1]);
    next.resize(static_cast<size_t>(memory.cells));
    memory.write(next, key, static_cast<char>(token - memory.length));
    return next;
  };
  machine.answer = [memory](const Bytes& state, int64_t query) {
    const int64_t cell = memory.cell(query);
    return memory.length + (cell < 0 ? 0 : state[static_cast<size_t>(cell)]);
  };
  return machine;
}

}  // namespace

std::vector<int64_t> index_tokens(const Bits& bits) {
  std::vector<int64_t> tokens;
  for (size_t key = 0; key < bits.size(); ++key) {
    tokens.push_back(static_cast<int64_t>(key));
    tokens.push_back(static_cast<int64_t>(bits.size()) + bits[key]);
  }
  return tokens;
}

RecallInstance index_as_mqar(const Bits& bits, int64_t index) {
  const auto length = static_cast<int64_t>(bits.size());
  const PHot one_hot{1, length + 2};
  RecallInstance instance{length + 2, {}, {}, {}};
  const auto tuple = [&](int64_t key, int64_t value, int64_t query) {
    instance.keys.push_back(one_hot.encode(key));
    instance.values.push_back(one_hot.encode(value));
    instance.queries.push_back(one_hot.encode(query));
  };
  for (int64_t key = 0; key < length; ++key) tuple(key, length + bits[static_cast<size_t>(key)], key);
  tuple(length, length, index);  // a key that no query equals
  return instance;
}

Bytes alice(const RecurrentMachine& machine, const Bits& bits) {
  Bytes state = machine.initial();
  const auto tokens = index_tokens(bits);
  for (size_t position = 0; position < tokens.size(); ++position)
    state = machine.step(state, tokens[position], static_cast<int64_t>(position));
  return state;
}

int bob(const RecurrentMachine& machine, const Bytes& message, int64_t length, int64_t index) {
  const int64_t value = machine.answer(message, index) - length;
  return value == 0 || value == 1 ? static_cast<int>(value) : -1;
}

std::optional<Collision> find_collision(const RecurrentMachine& machine, int64_t length) {
  BASED_ASSERT(length <= kMostBits);
  std::map<Bytes, uint64_t> seen;
  for (uint64_t input = 0; input < uint64_t{1} << length; ++input) {
    const auto [at, is_new] = seen.try_emplace(alice(machine, bits_of(input, length)), input);
    if (is_new) continue;
    const uint64_t differ = at->second ^ input;
    int64_t index = 0;
    while ((differ >> index & 1) == 0) ++index;
    return Collision{bits_of(at->second, length), bits_of(input, length), index};
  }
  return std::nullopt;
}

Errors count_errors(const RecurrentMachine& machine, int64_t length) {
  BASED_ASSERT(length <= kMostBits);
  Errors errors{length << length, 0, 0};
  std::map<Bytes, std::vector<int64_t>>
      inputs_and_ones;  // for each message: the number of inputs with it, then how many of these have a 1 at each index
  for (uint64_t input = 0; input < uint64_t{1} << length; ++input) {
    const Bits bits = bits_of(input, length);
    auto& counts = inputs_and_ones[alice(machine, bits)];
    counts.resize(static_cast<size_t>(length) + 1);
    ++counts.back();
    for (size_t i = 0; i < bits.size(); ++i) counts[i] += bits[i];
  }
  for (const auto& [message, counts] : inputs_and_ones) {
    const int64_t inputs = counts.back();
    for (int64_t i = 0; i < length; ++i) {
      const int64_t ones = counts[static_cast<size_t>(i)];
      const int answer = bob(machine, message, length, i);
      errors.wrong += answer < 0 ? inputs : answer == 1 ? inputs - ones : ones;
      errors.best += std::min(ones, inputs - ones);
    }
  }
  return errors;
}

RecurrentMachine table_machine(int64_t length) {
  return machine_of({"table", length, length, [](Bytes& cells, int64_t key, char value) { cells[static_cast<size_t>(key)] = value; },
                     [](int64_t key) { return key; }});
}

RecurrentMachine hashed_machine(int64_t length, int64_t cells) {
  const auto cell = [cells](int64_t key) { return cells == 0 ? -1 : key % cells; };
  return machine_of({"hashed", length, cells,
                     [cell](Bytes& state, int64_t key, char value) {
                       if (cell(key) >= 0) state[static_cast<size_t>(cell(key))] = value;
                     },
                     cell});
}

RecurrentMachine recent_machine(int64_t length, int64_t cells) {
  const int64_t forgotten = length - cells;
  return machine_of({"most recent", length, cells,
                     [](Bytes& state, int64_t, char value) {
                       state.push_back(value);
                       state.erase(state.begin());
                     },
                     [forgotten](int64_t key) { return key < forgotten ? -1 : key - forgotten; }});
}

RecurrentMachine parity_machine(int64_t length, int64_t cells, uint64_t seed) {
  const auto in_sum = [seed](int64_t cell, int64_t key) {
    return philox4x32({static_cast<uint32_t>(cell), static_cast<uint32_t>(key), 0, 0}, {static_cast<uint32_t>(seed), 1})[0] & 1;
  };
  return machine_of({"parities", length, cells,
                     [in_sum](Bytes& state, int64_t key, char value) {
                       for (size_t cell = 0; cell < state.size(); ++cell)
                         state[cell] ^= static_cast<char>(value & in_sum(static_cast<int64_t>(cell), key));
                     },
                     [in_sum, cells](int64_t key) {
                       int64_t cell = 0;
                       while (cell < cells && in_sum(cell, key) == 0) ++cell;
                       return cell < cells ? cell : -1;
                     }});
}

RecurrentMachine random_machine(int64_t length, int64_t state_bits, uint64_t seed) {
  BASED_ASSERT(state_bits < 8);
  const auto drawn = [seed](uint32_t kind, uint32_t state, uint32_t token) {
    return philox4x32({kind, state, token, 0}, {static_cast<uint32_t>(seed), 2})[0];
  };
  const uint32_t mask = (uint32_t{1} << state_bits) - 1;
  RecurrentMachine machine;
  machine.name = "random";
  machine.message_bits = state_bits;
  machine.initial = [] { return Bytes(1, 0); };
  machine.step = [=](const Bytes& state, int64_t token, int64_t) {
    return Bytes(1, static_cast<char>(drawn(0, static_cast<uint32_t>(state[0]), static_cast<uint32_t>(token)) & mask));
  };
  machine.answer = [=](const Bytes& state, int64_t query) {
    return length + (drawn(1, static_cast<uint32_t>(state[0]), static_cast<uint32_t>(query)) & 1);
  };
  return machine;
}

}  // namespace based::theory
