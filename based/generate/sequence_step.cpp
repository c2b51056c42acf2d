#include "based/generate/sequence_step.h"

#include <string>
#include <utility>

#include "based/core/error.h"

namespace based {

SequenceStep::SequenceStep(Parts parts)
    : parts_(std::move(parts)), tokens_at_host_(torch::zeros({kRows}, torch::dtype(torch::kInt64).device(parts_.model.device()))) {
  BASED_ASSERT(parts_.state.slots() == 1);
  const torch::Device device = parts_.model.device();
  const auto ids = torch::dtype(torch::kInt64).device(device);
  slots_ = torch::zeros({kRows}, ids), drafts_ = torch::zeros({kMostDraftTokens}, ids);
  tokens_ = torch::zeros({kRows}, ids), positions_ = torch::zeros({kRows}, ids);
  places_ = torch::arange(1, kRows + 1, ids);
  seen_ = torch::zeros({kRows, parts_.sampling.seen.size(1)}, parts_.sampling.seen.options());
  if (!parts_.log_probabilities) return;
  log_probabilities_ = torch::zeros({kRows}, torch::dtype(torch::kFloat).device(device));
  log_probabilities_at_host_.emplace(log_probabilities_);
}

void SequenceStep::record(std::optional<decode::Fusion> fusion) {
  const torch::Device device = parts_.model.device();
  decode::PlanOptions options = kPlan;
  options.fusion = fusion.value_or(decode::Fusion::none);
  try {
    for (int64_t tokens = 1; tokens <= kRows; ++tokens) {
      parts_.state.zero(slots_.narrow(0, 0, 1));  // so that the positions of the steps before the recording stay small
      const auto body = [this, tokens] { step(tokens); };
      runtime::Replay* const first = recordings_.empty() ? nullptr : recordings_[0].replay.get();
      recordings_.push_back(fusion ? decode::record_step(device, body, options, first)
                                   : decode::RecordedStep{nullptr, runtime::record(device, body, {.rewrite = {}, .memory_of = first})});
      const decode::Plan* const plan = recordings_.back().plan.get();
      if (plan != nullptr && plan->fused() != recordings_[0].plan->fused())
        throw Error("a step of " + std::to_string(tokens) + " tokens fuses other operators than a step of one");
    }
  } catch (...) {
    recordings_.clear();
    throw;
  }
}

// The body of a step that reads `tokens` tokens. It may be recorded: it uses fixed memory and no value on the host.
void SequenceStep::step(int64_t tokens) {
  at::add_out(positions_, places_, parts_.state.position());
  const Tensor ids = tokens == 1 ? parts_.token : torch::cat({parts_.token, drafts_.narrow(0, 0, tokens - 1)});
  const std::vector<int64_t> rounds(static_cast<size_t>(tokens), 1);
  const Tensor hidden =
      parts_.model.step_rounds(ids, parts_.state, slots_.narrow(0, 0, tokens), rounds, journal_.get(), /*padding=*/kRows - tokens);
  const Tensor logits = parts_.model.logits(hidden);
  logits_[static_cast<size_t>(tokens - 1)] = logits;  // keeps a recording from using their memory again
  ops::SampleOptions options = parts_.sampling;
  options.position = positions_.narrow(0, 0, tokens);
  parts_.draw(logits.narrow(0, 0, tokens), tokens_.narrow(0, 0, tokens), options, drafts_.narrow(0, 0, tokens - 1),
              seen_.narrow(0, 0, tokens));
  if (parts_.log_probabilities) log_probabilities_.copy_(parts_.log_probabilities(logits, tokens_));
  if (tokens == 1) take_now(0);
}

void SequenceStep::run_operators(int64_t tokens) {
  tokens_read_ = tokens;
  step(tokens);
}

void SequenceStep::run(std::span<const int64_t> drafts) {
  const auto count = static_cast<int64_t>(drafts.size());
  BASED_ASSERT(count <= kMostDraftTokens);
  if (count > 0) {
    const Tensor given = torch::tensor(std::vector<int64_t>(drafts.begin(), drafts.end()), torch::kInt64);
    drafts_.narrow(0, 0, count).copy_(drafts_.is_cuda() ? given.pin_memory() : given, /*non_blocking=*/true);
  }
  tokens_read_ = 1 + count;
  recordings_.empty() ? step(tokens_read_) : recordings_[static_cast<size_t>(count)].replay->run();
}

void SequenceStep::take(int64_t row) {
  if (tokens_read_ > 1) take_now(row);  // a step of one token has done so
}

void SequenceStep::take_now(int64_t row) {
  parts_.token.copy_(tokens_.narrow(0, row, 1));
  parts_.sampling.seen.copy_(seen_.narrow(0, row, 1));
}

SequenceStep::Drawn SequenceStep::read_back() {
  tokens_at_host_.begin(tokens_);
  if (log_probabilities_at_host_) log_probabilities_at_host_->begin(log_probabilities_);
  Drawn drawn{tokens_at_host_.wait().const_data_ptr<int64_t>(), nullptr};
  if (log_probabilities_at_host_) drawn.log_probabilities = log_probabilities_at_host_->wait().const_data_ptr<float>();
  return drawn;
}

}  // namespace based
