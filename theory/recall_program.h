// The upper bound's program for recall (MQAR): O(log log N̄) layers of BaseConv compute (C ⊙ (Q Kᵀ)) V with C[i, j] = 1 for j ≤ i. The rows
// of Q and K must be one-hot, and no query may match more than one key up to its own row. The program is not causal.
#pragma once
#include <vector>

#include "theory/base_conv.h"

namespace based::theory {

// The encoding of a row of V in steps 4 to 8, which concatenate all rows.
enum class ValueCode {
  binary,  // as in the paper: the index of the row's 1 in ⌈log(d + 1)⌉ bits; values must be one-hot or zero
  plain    // the row's d entries, any integers: the matrices of steps 4 to 8 are N·d wide
};

struct RecallSizes {
  int64_t length;  // N: the number of queries, of keys and of values
  int64_t tokens;  // d, the width of a one-hot row
  ValueCode code = ValueCode::binary;

  int64_t key_bits() const;    // b = ⌈log(N + 1)⌉
  int64_t value_bits() const;  // b̄ = ⌈log(d + 1)⌉, or d for the plain code
  int64_t block() const;       // z: the number of rows of the blocks that Q, K and V are moved to
};

inline constexpr int64_t kMaxRecall = 256;  // the limit on N and d

// The input is Q, K and V stacked vertically, [3N, d]; the output is the top left [N, d]. Throws UsageError for sizes outside 1 …
// kMaxRecall. The descriptions of layers begin with the step of the paper, "2.2: …".
Program recall_program(const RecallSizes& sizes);

// The definition, by loops over integers. `input` is that of the program.
IntMatrix recall_by_definition(const RecallSizes& sizes, const IntMatrix& input);

}  // namespace based::theory
