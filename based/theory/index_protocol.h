// The index problem: Alice has N bits and sends one message, Bob has an index and answers with its bit. A machine that recalls is a
// protocol: Alice has it read "key j, bit j" for all j, its state is the message, and Bob has it answer the query i.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "based/theory/recall.h"

namespace based::theory {

using Bits = std::vector<uint8_t>;  // 0 or 1 each
using Bytes = std::string;          // a state, serialised

// A machine that reads tokens one by one and whose memory is `state` alone. What it is made of, trained or not, is behind three functions.
struct RecurrentMachine {
  std::string name;
  std::function<Bytes()> initial;
  std::function<Bytes(const Bytes& state, int64_t token, int64_t position)> step;
  std::function<int64_t(const Bytes& state, int64_t query)> answer;  // the token that it gives for a query behind what it has read
  int64_t message_bits = 0;                                          // that a state behind whole pairs can be told in
};

// Tokens of an instance of N bits: 0 … N-1 are keys, N and N + 1 the values 0 and 1.
std::vector<int64_t> index_tokens(const Bits& bits);  // key 0, value 0, key 1, … [2N]
// The same question as MQAR: (key j, value j, key j) for all j, then a tuple whose query is `index`, all one-hot in N + 2 columns.
RecallInstance index_as_mqar(const Bits& bits, int64_t index);

Bytes alice(const RecurrentMachine& machine, const Bits& bits);                                 // the message
int bob(const RecurrentMachine& machine, const Bytes& message, int64_t length, int64_t index);  // 0 or 1; −1 where the answer is no value

// Two inputs of one message, which differ at `index`: Bob is wrong about one of them.
struct Collision {
  Bits first, second;
  int64_t index;
};
// The first one among all inputs of `length` ≤ 20 bits, which there must be where a message has fewer bits.
std::optional<Collision> find_collision(const RecurrentMachine& machine, int64_t length);

// Bob's wrong answers among all length · 2^length questions; with `best` those that remain where Bob answers each message as well as can
// be.
struct Errors {
  int64_t questions, wrong, best;
};
Errors count_errors(const RecurrentMachine& machine, int64_t length);

// Machines to try. `cells` ≤ length.
RecurrentMachine table_machine(int64_t length);                                 // a bit a key: exact, in `length` bits
RecurrentMachine hashed_machine(int64_t length, int64_t cells);                 // a bit for keys equal modulo `cells`: the last written
RecurrentMachine recent_machine(int64_t length, int64_t cells);                 // the last `cells` pairs
RecurrentMachine parity_machine(int64_t length, int64_t cells, uint64_t seed);  // sums modulo 2 of random keys' values
RecurrentMachine random_machine(int64_t length, int64_t state_bits, uint64_t seed);  // 2^state_bits states, any transitions

}  // namespace based::theory
