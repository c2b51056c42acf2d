// The upper bound's program for recall (MQAR): O(log log N̄) layers of BaseConv compute (C ⊙ (Q Kᵀ)) V, C[i, j] = 1 for j ≤ i, where the
// rows of Q and K are one-hot and no query matches more than one key up to its own row. It looks ahead, so it is no language model.
#pragma once
#include <vector>

#include "based/theory/base_conv.h"

namespace based::theory {

// How steps 4 to 8 write a row of V down, beside each other for all rows.
enum class ValueCode {
  binary,  // the paper's: the number of its 1 in ⌈log(d + 1)⌉ bits, so that values must be one-hot (or zero)
  plain    // its d entries, any integers: the matrices of steps 4 to 8 are N·d wide
};

struct RecallSizes {
  int64_t length;  // N, queries, keys and values each
  int64_t tokens;  // d, the width of a one-hot row
  ValueCode code = ValueCode::binary;

  int64_t key_bits() const;    // b = ⌈log(N + 1)⌉
  int64_t value_bits() const;  // b̄ = ⌈log(d + 1)⌉, or d where the code is plain
  int64_t block() const;       // z: rows that Q, K and V are moved apart to
};

inline constexpr int64_t kMaxRecall = 256;  // of N and d

// Input: Q, K and V below each other, [3N, d]; output: the top left [N, d]. Throws UsageError for sizes that are not 1 … kMaxRecall.
// Layers say which step of the paper they are, "2.2: …".
Program recall_program(const RecallSizes& sizes);

// The definition, by loops over integers; `input` as the program's.
IntMatrix recall_by_definition(const RecallSizes& sizes, const IntMatrix& input);

}  // namespace based::theory
