#include "based/generate/sequence_step.h"

#include <algorithm>
#include <string>
#include <utility>

#include "based/core/error.h"
#include "based/kernels/sampling/accept_drafts.h"
#include "based/ops/sampling/accept_drafts.h"

namespace based {

SequenceStep::SequenceStep(Parts parts)
    : parts_(std::move(parts)), tokens_at_host_(torch::zeros({kRows}, torch::dtype(torch::kInt64).device(parts_.model.device()))) {
  BASED_ASSERT(parts_.state.slots() == 1);
  const torch::Device device = parts_.model.device();
  const auto ids = torch::dtype(torch::kInt64).device(device);
  slots_ = torch::zeros({kRows}, ids), drafts_ = torch::zeros({kMostDraftTokens}, ids);
  drafts_at_host_ = torch::zeros({kMostDraftTokens}, torch::dtype(torch::kInt64).pinned_memory(device.is_cuda()));
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

bool SequenceStep::record_programs() {
  rows_ = StepRows::of_tokens;
  bool found = true;
  try {
    for (int64_t tokens = 1; tokens <= kRows && found; ++tokens) {
      add_recording([this, tokens] { step(tokens); }, plan_options(tokens, rows_));
      const decode::Plan* const plan = recordings_.back().plan.get();
      found = plan != nullptr && plan->is_one_program();
    }
  } catch (...) {
    recordings_.clear(), rows_ = StepRows::fixed;
    throw;
  }
  if (!found) recordings_.clear(), rows_ = StepRows::fixed;
  return found;
}

void SequenceStep::record(std::optional<decode::Fusion> fusion) {
  std::optional<decode::PlanOptions> options;
  if (fusion) options = plan_options(1, StepRows::fixed), options->fusion = *fusion;
  try {
    for (int64_t tokens = 1; tokens <= kRows; ++tokens) {
      add_recording([this, tokens] { step(tokens); }, options);
      const decode::Plan* const plan = recordings_.back().plan.get();
      if (plan != nullptr && plan->fused() != recordings_[0].plan->fused())
        throw Error("a step of " + std::to_string(tokens) + " tokens fuses other operators than a step of one");
    }
    if (!parts_.one_row) return;
    if (fusion == decode::Fusion::layers) options = plan_options(1, StepRows::of_tokens);
    add_recording([this] { step_one_row(kOneRow); }, options);
  } catch (...) {
    recordings_.clear();
    throw;
  }
}

// The body of a step that reads `tokens` tokens. It may be recorded: it uses fixed memory and no value on the host.
void SequenceStep::step(int64_t tokens) {
  if (tokens == 1 && rows_ == StepRows::of_tokens) return step_one_row(0);
  at::add_out(positions_, places_, parts_.state.position());
  const Tensor ids = tokens == 1 ? parts_.token : torch::cat({parts_.token, drafts_.narrow(0, 0, tokens - 1)});
  const std::vector<int64_t> rounds(static_cast<size_t>(tokens), 1);
  const int64_t padding = rows_ == StepRows::fixed ? kRows - tokens : 0;
  const Tensor hidden = parts_.model.step_rounds(ids, parts_.state, slots_.narrow(0, 0, tokens), rounds, journal_.get(), padding);
  const Tensor logits = parts_.model.logits(hidden);
  logits_[static_cast<size_t>(tokens - 1)] = logits;  // keeps a recording from using their memory again
  draw(logits, tokens);
  if (tokens == 1) take_now(0);
}

// `index`: of the recording.
void SequenceStep::step_one_row(size_t index) {
  at::add_out(positions_, places_, parts_.state.position());
  const Tensor logits = parts_.model.logits(parts_.model.step(parts_.token, parts_.state, slots_.narrow(0, 0, 1)));
  logits_[index] = logits;
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
  // The order of a row's sum depends on the number of rows.
  const int64_t rows = logits.size(0), at_once = rows_ == StepRows::fixed ? rows : 1;
  for (int64_t row = 0; row < rows; row += at_once)
    log_probabilities_.narrow(0, row, at_once)
        .copy_(parts_.log_probabilities(logits.narrow(0, row, at_once), tokens_.narrow(0, row, at_once)));
}

void SequenceStep::run_operators(int64_t tokens, StepRows rows) {
  BASED_ASSERT(recordings_.empty());
  rows_ = rows;
  last_ = static_cast<size_t>(tokens - 1);
  step(tokens);
}

void SequenceStep::run(std::span<const int64_t> drafts) {
  const auto count = static_cast<int64_t>(drafts.size());
  BASED_ASSERT(count <= kMostDraftTokens);
  if (count > 0) {
    std::copy(drafts.begin(), drafts.end(), drafts_at_host_.mutable_data_ptr<int64_t>());
    drafts_.copy_(drafts_at_host_, /*non_blocking=*/true);
  }
  last_ = drafts.size();
  recordings_.empty() ? step(1 + count) : recordings_[last_].replay->run();
}

void SequenceStep::run_one_row() {
  if (rows_ == StepRows::of_tokens) return run({});
  BASED_ASSERT(parts_.one_row);
  last_ = kOneRow;
  recordings_.empty() ? step_one_row(kOneRow) : recordings_[last_].replay->run();
}

void SequenceStep::take(int64_t row) {
  if (tokens_read() > 1) take_now(row);  // a step of one token has done so
}

void SequenceStep::take_now(int64_t row) {
  parts_.token.copy_(tokens_.narrow(0, row, 1));
  parts_.sampling.seen.copy_(seen_.narrow(0, row, 1));
  if (parts_.log_probabilities) parts_.log_probability.copy_(log_probabilities_.narrow(0, row, 1));
}

SequenceStep::Drawn SequenceStep::accept_drafts() {
  tokens_at_host_.begin(tokens_);
  if (log_probabilities_at_host_) log_probabilities_at_host_->begin(log_probabilities_);
  const int64_t tokens = tokens_read();
  if (tokens > 1) {  // a step of one token has taken its row
    std::vector<ops::AcceptedValue> values = journal_->values_of_sequence(0, tokens);
    values.push_back({parts_.token, tokens_.narrow(0, 0, tokens)});
    values.push_back({parts_.sampling.seen, seen_.narrow(0, 0, tokens)});
    if (parts_.log_probabilities) values.push_back({parts_.log_probability, log_probabilities_.narrow(0, 0, tokens)});
    ops::accept_drafts_(tokens_, drafts_.narrow(0, 0, tokens - 1), values);
  }
  Drawn drawn{tokens_at_host_.wait().const_data_ptr<int64_t>()};
  if (log_probabilities_at_host_) drawn.log_probabilities = log_probabilities_at_host_->wait().const_data_ptr<float>();
  drawn.accepted = kernels::accepted_drafts(drawn.tokens, drafts_at_host_.const_data_ptr<int64_t>(), tokens - 1);
  return drawn;
}

}  // namespace based
