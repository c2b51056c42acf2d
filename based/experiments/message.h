// A state as a message: what one who holds nothing else can go on from.
#pragma once
#include <cstddef>
#include <vector>

#include "based/models/state.h"

namespace based {

// The numbers of slot 0 of a state, in the order of ModelState::named(), each in `bits_each`: 32 as fp32, 16 as bf16, 2 to 8 as integers
// times a scale that each tensor sends as fp32. Growing tensors as far as the text went. Positions are not sent: both sides know them.
struct StateMessage {
  std::vector<std::byte> bytes;
  int64_t bits = 0;  // sent; the last byte may be partly empty
};
StateMessage write_message(const ModelState& state, int bits_each);
// A state of the same shape as `like`, whose positions it takes, from the message. Throws Error where the message has another length.
ModelState read_message(const StateMessage& message, const ModelState& like, int bits_each);
bool message_width(int bits_each);  // whether it is one of 32, 16, 8, 7, 6, 5, 4, 3 and 2

}  // namespace based
