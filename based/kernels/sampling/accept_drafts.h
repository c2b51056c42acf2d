// Keeps the results of a step of several tokens of one sequence up to its first wrong draft. The step has read an input token and drafts,
// and has drawn a token after each of them as if the drafts were right.
#pragma once
#include "based/kernels/common/launchers.h"
#include "based/kernels/common/random_bits.h"

namespace based::kernels {

// A value that the step has computed after each token that it has read, or after each but the last one.
struct AcceptedRow {
  void* to = nullptr;          // [count]: the value after all tokens, or one that is not valid yet
  const void* from = nullptr;  // [rows, count]: row i is the value after the input token and i drafts
  int64_t count = 0;           // bytes of a row
  int64_t rows = 0;
};

// With a = the number of leading drafts that equal the token drawn before each:
//   to = from[a] for every value that has row a
struct AcceptDrafts {               // caller owns all memory
  const int64_t* tokens = nullptr;  // [draft_count or more], drawn after the input token and after each draft
  const int64_t* drafts = nullptr;  // [draft_count]
  int64_t draft_count = 0;
  const AcceptedRow* values = nullptr;  // [value_count], in host memory; not read after the launcher returns
  int64_t value_count = 0;
};

BASED_ON_BOTH int64_t accepted_drafts(const int64_t* tokens, const int64_t* drafts, int64_t draft_count) {
  int64_t accepted = 0;
  while (accepted < draft_count && drafts[accepted] == tokens[accepted]) ++accepted;
  return accepted;
}

namespace cpu {
Status accept_drafts(const AcceptDrafts&);
}  // namespace cpu

namespace cuda {
Status accept_drafts(const AcceptDrafts&, Queue);
}  // namespace cuda

// A device's launcher, as above.
struct AcceptDraftsLaunchers {
  Status (*accept)(const AcceptDrafts&, Queue);
};

}  // namespace based::kernels
