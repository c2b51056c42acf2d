// The index problem: Alice has N bits and sends one message; Bob has an index and must answer with its bit. A recurrent machine that solves
// recall is a protocol: Alice lets it read "key j, bit j" for all j and sends its state; Bob lets it answer the query i.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "theory/recall.h"

namespace based::theory {

using Bits = std::vector<uint8_t>;  // 0 or 1 each
using Bytes = std::string;          // a serialised state

// A machine that reads tokens one by one and whose only memory is its state. Three functions hide its implementation, such as a trained
// model.
struct RecurrentMachine {
  std::string name;
  std::function<Bytes()> initial;
  std::function<Bytes(const Bytes& state, int64_t token, int64_t position)> step;
  std::function<int64_t(const Bytes& state, int64_t query)> answer;  // the predicted token for a query after the tokens read so far
  int64_t message_bits = 0;                                          // the bits that encode a state after whole pairs
};

// The tokens of an instance of N bits: 0 … N-1 are keys, N and N + 1 are the values 0 and 1.
std::vector<int64_t> index_tokens(const Bits& bits);  // key 0, value 0, key 1, … [2N]
// The question as an instance of MQAR: (key j, value j, key j) for all j, then a tuple whose query is `index`, all one-hot in N + 2
// columns.
RecallInstance index_as_mqar(const Bits& bits, int64_t index);

Bytes alice(const RecurrentMachine& machine, const Bits& bits);                                 // the message
int bob(const RecurrentMachine& machine, const Bytes& message, int64_t length, int64_t index);  // 0 or 1; −1 if the answer is not a value

// Two inputs with the same message that differ at `index`: Bob is wrong about one of them.
struct Collision {
  Bits first, second;
  int64_t index;
};
// The first collision among all inputs of `length` ≤ 20 bits. There is one if messages have fewer bits.
std::optional<Collision> find_collision(const RecurrentMachine& machine, int64_t length);

// The number of Bob's wrong answers among all length · 2^length questions. `best` is the number that remains if Bob answers optimally for
// each message.
struct Errors {
  int64_t questions, wrong, best;
};
Errors count_errors(const RecurrentMachine& machine, int64_t length);

// Machines for trials. `cells` ≤ length.
RecurrentMachine table_machine(int64_t length);                  // one bit per key: exact, in `length` bits
RecurrentMachine hashed_machine(int64_t length, int64_t cells);  // keys that are equal modulo `cells` share a bit, the last written
RecurrentMachine recent_machine(int64_t length, int64_t cells);  // the last `cells` pairs
RecurrentMachine parity_machine(int64_t length, int64_t cells, uint64_t seed);       // sums modulo 2 of random keys' values
RecurrentMachine random_machine(int64_t length, int64_t state_bits, uint64_t seed);  // 2^state_bits states, any transitions

}  // namespace based::theory
