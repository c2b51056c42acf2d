// Serializes a model's state into a message of bits, from which a receiver that knows only the model can continue the sequence.
#pragma once
#include <cstddef>
#include <vector>

#include "based/models/state.h"

namespace based {

// The numbers of a state's slot 0, in the order of ModelState::named(), with `bits_each` bits per number: 32 for fp32, 16 for bf16, 2 to 8
// for integers times an fp32 scale, which is sent once per tensor. A tensor that grows with the sequence is sent up to the current
// position. Positions are not sent: both sides know them.
struct StateMessage {
  std::vector<std::byte> bytes;
  int64_t bits = 0;  // length of the message; the last byte may be used in part
};
StateMessage write_message(const ModelState& state, int bits_each);
// A state with the shapes and positions of `like` and the numbers of the message. Throws Error if the message has another length.
ModelState read_message(const StateMessage& message, const ModelState& like, int bits_each);
bool message_width(int bits_each);  // whether it is one of 32, 16, 8, 7, 6, 5, 4, 3 and 2

}  // namespace based
