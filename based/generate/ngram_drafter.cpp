// Drafts from the sequence's own text.
#include "based/generate/drafting.h"
#include "based/generate/gram_index.h"

namespace based {
namespace {

class NgramDrafter final : public Drafter {
 public:
  void draft(std::vector<Request>& requests) override {
    for (Request& request : requests) request.drafts = indices_[request.sequence].continuation(*request.tokens, request.most);
  }
  void forget(int64_t sequence) override { indices_.erase(sequence); }

 private:
  std::map<int64_t, GramIndex> indices_;
};

}  // namespace

std::unique_ptr<Drafter> make_ngram_drafter() { return std::make_unique<NgramDrafter>(); }

}  // namespace based
