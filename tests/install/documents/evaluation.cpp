// docs/evaluation.md
#include <memory>
#include <vector>

#include "based/data/slices.h"
#include "based/eval/perplexity.h"

void measure_slices(based::LanguageModel& model, const based::TokenDataset& train, const std::shared_ptr<const based::TokenDataset>& valid,
                    const std::vector<based::TokenBatch>& batches) {
#include "docs/evaluation.md.1"
}
