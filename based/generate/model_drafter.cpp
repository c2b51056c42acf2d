// Drafts by a smaller model.
#include <algorithm>
#include <optional>

#include "based/generate/decode_step.h"
#include "based/generate/drafting.h"
#include "based/generate/engine.h"

namespace based {
namespace {

// A sequence has kStates slots of the model's state. The state in its first one has read the sequence up to its last token. Each draft
// token takes a step from a copy of the state before, in the next slot. When drafts have been accepted, one of these states is that of the
// longer sequence, so that the model reads each token once.
class ModelDrafter final : public Drafter {
 public:
  ModelDrafter(std::shared_ptr<LanguageModel> model, int64_t sequences)
      : model_(std::move(model)), state_(model_->make_state(sequences * kStates)), step_(*model_, state_, {.steps = Steps::plain}) {
    for (int64_t first = 0; first < sequences; ++first) free_.push_back(first * kStates);
  }

  void draft(std::vector<Request>& requests) override {
    const torch::InferenceMode inference;
    std::vector<Draft> active;
    for (Request& request : requests)
      if (Known* const known = prepare(request)) active.push_back({&request, known});
    while (!active.empty()) {
      extend(active);
      std::erase_if(active, [](const Draft& draft) { return !draft.is_open; });
    }
  }

  void forget(int64_t sequence) override {
    const auto found = known_.find(sequence);
    if (found == known_.end()) return;
    free_.push_back(found->second.first_slot);
    known_.erase(found);
  }

 private:
  static constexpr int64_t kStates = 1 + kMostDraftTokens;

  struct Known {
    int64_t first_slot = 0;
    int64_t states = 0;  // slot first_slot + i, i < states, has read `read` + i tokens of `text`
    int64_t read = 0;
    std::vector<int64_t> text;  // the sequence and its latest drafts
  };
  struct Draft {
    Request* request;
    Known* known;
    bool is_open = true;
  };

  Slots on_device(int64_t slot) const { return torch::full({1}, slot, torch::kInt64); }

  // Brings the state in the sequence's first slot up to its last token. Null if nothing can be drafted: all slots are in use, or the text
  // is as long as the model's positions, or longer.
  Known* prepare(Request& request) {
    if (known_.count(request.sequence) == 0) {
      if (free_.empty()) return nullptr;
      known_[request.sequence].first_slot = free_.back();
      free_.pop_back();
    }
    Known& known = known_[request.sequence];
    const std::vector<int64_t>& tokens = *request.tokens;
    const auto wanted = static_cast<int64_t>(tokens.size()) - 1;
    if (const int64_t positions = model_->config().max_positions; positions > 0)
      request.most = std::min(request.most, std::max<int64_t>(positions - wanted, 0));
    if (request.most <= 0) return nullptr;
    const auto same = std::mismatch(known.text.begin(), known.text.end(), tokens.begin(), tokens.end()).first - known.text.begin();
    const int64_t latest = std::min({known.states - 1, same - known.read, wanted - known.read});
    if (latest < 0) {
      state_.zero(on_device(known.first_slot));
      known.read = 0;
    } else {
      state_.copy(known.first_slot + latest, known.first_slot);
      known.read += latest;
    }
    const int64_t piece = default_prefill_tokens(torch::kCPU);
    for (; known.read < wanted; known.read += std::min(piece, wanted - known.read))
      read(known, tokens, std::min(piece, wanted - known.read));
    known.states = 1;
    known.text = tokens;
    return &known;
  }

  void read(const Known& known, const std::vector<int64_t>& tokens, int64_t count) {
    const auto begin = tokens.begin() + known.read;
    const Tensor ids = torch::tensor(std::vector<int64_t>(begin, begin + count));
    if (count == 1)
      model_->step(ids, state_, on_device(known.first_slot));
    else
      model_->prefill_last(ids, Sequences::equal(1, count), state_, on_device(known.first_slot));
  }

  // Adds one token to each draft, and closes those that have as many as requested.
  void extend(std::vector<Draft>& active) {
    std::vector<int64_t> slots;
    std::vector<SamplingOptions> sampling;
    std::vector<const std::vector<int64_t>*> texts;
    std::sort(active.begin(), active.end(), [](const Draft& a, const Draft& b) { return a.known->first_slot < b.known->first_slot; });
    for (const Draft& draft : active) {
      const int64_t before = draft.known->first_slot + draft.known->states - 1;
      state_.copy(before, before + 1);
      slots.push_back(before + 1);
      sampling.push_back(*draft.request->sampling);
      texts.push_back(&draft.known->text);
    }
    step_.set_sampling(slots, sampling);
    step_.load_last_tokens(slots, texts);
    step_.run(slots);
    step_.begin_readback();
    const int64_t* const tokens = step_.finish_readback().tokens;
    for (size_t i = 0; i < active.size(); ++i) {
      Draft& draft = active[i];
      ++draft.known->states;
      const int64_t token = tokens[slots[i]];
      if (token >= 0) {
        draft.request->drafts.push_back(token);
        draft.known->text.push_back(token);
      }
      draft.is_open = token >= 0 && static_cast<int64_t>(draft.request->drafts.size()) < draft.request->most;
    }
  }

  std::shared_ptr<LanguageModel> model_;
  ModelState state_;
  DecodeStep step_;
  std::map<int64_t, Known> known_;
  std::vector<int64_t> free_;  // the first slots of sequences yet to come
};

}  // namespace

std::unique_ptr<Drafter> make_model_drafter(std::shared_ptr<LanguageModel> model, int64_t sequences) {
  if (!model->device().is_cpu()) throw UsageError("a draft model runs on the CPU, got " + model->device().str());
  const torch::InferenceMode inference;
  return std::make_unique<ModelDrafter>(std::move(model), sequences);
}

}  // namespace based
