#include "based/theory/degree.h"
#include "based/theory/recall.h"
#include "based/theory/statements/block_recall_trials.h"

namespace based::theory {
namespace {

void verify(Trial& trial) {
  for (int64_t bits = 1; bits <= 6; ++bits) {
    const PHot compact{bits, 2, true};
    try_recall(trial, compact, bits <= 2 ? 3 : 6, "more than log(2d)");
  }
  trial.size("d ≤ 6, ≤ 6 keys");
  for (const int64_t bits : {1, 2, 4, 8, 16, 32, 64}) {
    const Program program = block_recall({bits, 2, true}, 1);
    const int64_t bound = least_layers(2 * bits + 1);
    trial.require(bound > ceil_log2(2 * bits) && program.depth() >= bound && program.depth() <= bound + 3,
                  "d = " + std::to_string(bits) + ": layers " + std::to_string(program.depth()));
    trial.note("d = " + std::to_string(bits) + ": 2^L ≥ 2d + 1 asks for " + std::to_string(bound) +
               " layers; built, for one query behind any number of keys: " + std::to_string(program.depth()) + ", " + program.tuple());
  }
}

Example example() {
  const PHot compact{2, 2, true};
  return {block_recall(compact, 2), encoded(compact, {1, 2, 3, 0, 3}),
          "Keys 1 and 3 with values 2 and 0 in two bits each; the query is 3."};
}

}  // namespace

extern const Statement statement_mqar_layers{"mqar_layers", "Theorem 'thm: mqar-1hot'", "MQAR in d = log c bits needs log(2d) layers",
                                             verify, example};

}  // namespace based::theory
