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

// Records the next step. Without `options` it stays as its operators launch it.
void SequenceStep::add_recording(const std::function<void()>& body, std::optional<decode::PlanOptions> options) {
  const torch::Device device = parts_.model.device();
  parts_.state.zero(slots_.narrow(0, 0, 1));  // so that the positions of the steps before the recording stay small
  runtime::Replay* const first = recordings_.empty() ? nullptr : recordings_[0].replay.get();
  recordings_.push_back(options ? decode::record_step(device, body, *options, first)
                                : decode::RecordedStep{nullptr, runtime::record(device, body, {.rewrite = {}, .memory_of = first})});
}

void SequenceStep::record(std::optional<decode::Fusion> fusion) {
  std::optional<decode::PlanOptions> options;
  if (fusion) options = decode::PlanOptions{kPlan.defers, *fusion};
  try {
    for (int64_t tokens = 1; tokens <= kRows; ++tokens) {
      add_recording([this, tokens] { step(tokens); }, options);
      const decode::Plan* const plan = recordings_.back().plan.get();
      if (plan != nullptr && plan->fused() != recordings_[0].plan->fused())
        throw Error("a step of " + std::to_string(tokens) + " tokens fuses other operators than a step of one");
    }
    if (!parts_.one_row) return;
    if (fusion == decode::Fusion::layers) options->fusion = decode::Fusion::all;
    add_recording([this] { step_one_row(); }, options);
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
  draw(logits, tokens);
  if (tokens == 1) take_now(0);
}

void SequenceStep::step_one_row() {
  at::add_out(positions_, places_, parts_.state.position());
  const Tensor logits = parts_.model.logits(parts_.model.step(parts_.token, parts_.state, slots_.narrow(0, 0, 1)));
  logits_[kOneRow] = logits;
  draw(logits, 1);
  take_now(0);
}

// Draws a token from each of the first rows of the logits.
void SequenceStep::draw(const Tensor& logits, int64_t tokens) {
  ops::SampleOptions options = parts_.sampling;
  options.position = positions_.narrow(0, 0, tokens);
  parts_.draw(logits.narrow(0, 0, tokens), tokens_.narrow(0, 0, tokens), options, drafts_.narrow(0, 0, tokens - 1),
              seen_.narrow(0, 0, tokens));
  if (!parts_.log_probabilities) return;
  const int64_t rows = logits.size(0);
  log_probabilities_.narrow(0, 0, rows).copy_(parts_.log_probabilities(logits, tokens_.narrow(0, 0, rows)));
}

void SequenceStep::run_operators(int64_t tokens) {
  last_ = static_cast<size_t>(tokens - 1);
  step(tokens);
}

void SequenceStep::run(std::span<const int64_t> drafts) {
  const auto count = static_cast<int64_t>(drafts.size());
  BASED_ASSERT(count <= kMostDraftTokens);
  if (count > 0) {
    const Tensor given = torch::tensor(std::vector<int64_t>(drafts.begin(), drafts.end()), torch::kInt64);
    drafts_.narrow(0, 0, count).copy_(drafts_.is_cuda() ? given.pin_memory() : given, /*non_blocking=*/true);
  }
  last_ = drafts.size();
  recordings_.empty() ? step(1 + count) : recordings_[last_].replay->run();
}

void SequenceStep::run_one_row() {
  BASED_ASSERT(parts_.one_row);
  last_ = kOneRow;
  recordings_.empty() ? step_one_row() : recordings_[last_].replay->run();
}

void SequenceStep::take(int64_t row) {
  if (tokens_read() > 1) take_now(row);  // a step of one token has done so
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
