#include "theory/degree.h"
#include "theory/recall.h"
#include "theory/statements/block_recall_trials.h"

namespace based::theory {
namespace mqar_layers_statement {

void verify(Trial& trial) {
  trial.size("d ≤ 6, ≤ 4 tuples, all queries and one");
  for (int64_t bits = 1; bits <= 6; ++bits) try_recall(trial, {bits, 2, true}, bits <= 2 ? 3 : 4, "more than log(2d)");
  for (const int64_t bits : {1, 2, 4, 8, 16, 32, 64}) {
    const PHot compact{bits, 2, true};
    const Program program = block_mqar(compact, 2);
    const int64_t bound = least_layers(2 * bits + 1), one = block_recall(compact, 1).depth();
    trial.require(bound > ceil_log2(2 * bits) && one >= bound && one <= bound + 3 && program.depth() == one + 2,
                  "d = " + std::to_string(bits) + ": layers " + std::to_string(program.depth()));
    trial.note("d = " + std::to_string(bits) + ": 2^L ≥ 2d + 1 asks for " + std::to_string(bound) + " layers; built at any N " +
               std::to_string(program.depth()) + ", for one query " + std::to_string(one));
  }
}

Example example() {
  const PHot compact{2, 2, true};
  return {block_recall(compact, 2), encoded(compact, {1, 2, 0, 1, 0}), "Keys 1 and 0 with values 2 and 1, two bits each; the query is 0."};
}

}  // namespace mqar_layers_statement

extern const Statement statement_mqar_layers{"mqar_layers", "Theorem 'mqar-1hot'",         "MQAR in d = log c bits needs log(2d) layers",
                                             21'216,        mqar_layers_statement::verify, mqar_layers_statement::example};

}  // namespace based::theory
