#include "based/serve/endpoints/generation_run.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <random>
#include <utility>

#include "based/core/log.h"

namespace based {
namespace {

int64_t drawn_seed() {
  std::random_device device;
  return static_cast<int64_t>((static_cast<uint64_t>(device()) << 32U | device()) >> 1U);
}

ApiError error_of(const std::exception& failure) {
  if (const auto* const error = dynamic_cast<const ApiError*>(&failure)) return *error;
  if (dynamic_cast<const UsageError*>(&failure) != nullptr) return ApiError::invalid("", failure.what());
  return ApiError::failed(failure.what());
}

}  // namespace

GenerationRun::GenerationRun(Service& service, TaskQueue& queue, StateStore* states, GenerationFields fields, GenerationPlan plan,
                             std::unique_ptr<GenerationReply> reply)
    : service_(service), tasks_(queue), states_(states), fields_(std::move(fields)), plan_(std::move(plan)), reply_(std::move(reply)) {
  BASED_ASSERT(states_ != nullptr || !fields_.store.any());
}

struct GenerationRun::PieceBatch {
  std::mutex mutex;
  bool taken = false;
  std::vector<std::pair<int64_t, ChoicePiece>> pieces;  // with their parts

  // False if the pieces have been taken.
  bool add(int64_t part, ChoicePiece& piece) {
    const std::lock_guard lock(mutex);
    if (taken) return false;
    const auto same =
        std::find_if(pieces.begin(), pieces.end(), [&](const auto& one) { return one.first == part && one.second.choice == piece.choice; });
    if (same == pieces.end()) {
      pieces.emplace_back(part, std::move(piece));
      return true;
    }
    std::vector<TokenScore>& tokens = same->second.tokens;
    same->second.text += piece.text;
    tokens.insert(tokens.end(), std::make_move_iterator(piece.tokens.begin()), std::make_move_iterator(piece.tokens.end()));
    return true;
  }
  std::vector<std::pair<int64_t, ChoicePiece>> take() {
    const std::lock_guard lock(mutex);
    taken = true;
    return std::move(pieces);
  }
};

// Runs the action as a task, unless the request has ended by then. An exception fails the request.
template <class Action>
void GenerationRun::later(Action action) {
  tasks_.post([run = shared_from_this(), action = std::move(action)]() mutable {
    if (run->ended_) return;
    try {
      action(*run);
    } catch (const std::exception& failure) {
      run->fail(error_of(failure));
    }
  });
}

// An event other than a piece, which is written between the pieces before it and those that follow.
template <class Action>
void GenerationRun::after_pieces(Action action) {
  batch_ = nullptr;
  later([action = std::move(action)](GenerationRun& self) mutable {
    self.write_waiting_pieces();
    action(self);
  });
}

void GenerationRun::start() {
  later([](GenerationRun& run) {
    run.submit();
    run.reply_->begin();
  });
}

void GenerationRun::cancel() {
  later([](GenerationRun& run) {
    run.ended_ = true;
    run.stop_jobs();
  });
}

GenerationJob GenerationRun::job_of(int64_t index) {
  const GenerationPart& part = plan_.parts[static_cast<size_t>(index)];
  GenerationJob job;
  job.owner = plan_.owner;
  job.client = plan_.client;
  job.request_id = plan_.request_id;
  job.start = part.start;
  job.ids = part.ids;
  job.boundaries = part.boundaries;
  job.sampling = fields_.sampling;
  job.sampling.seed = fields_.seed ? *fields_.seed : drawn_seed();
  job.max_tokens = fields_.max_tokens;
  job.stop_tokens = fields_.stop_tokens;
  job.ignore_end_of_text = fields_.ignore_end_of_text;
  job.stops = fields_.stops;
  job.allowed = plan_.allowed;
  job.choices = plan_.choices;
  job.prompt_log_probabilities = plan_.score_prompt;
  job.top_log_probabilities = plan_.top_log_probabilities;
  job.keep_prompt_state = fields_.store.at_prompt;
  job.keep_end_state = fields_.store.at_end || plan_.keep_end_state;
  job.use_prefixes = !part.uploaded;
  const auto run = shared_from_this();
  job.events.prompt_read = [run, index](PromptRead prompt) {
    run->after_pieces([index, prompt = std::move(prompt)](GenerationRun& self) { self.prompt_read(index, prompt); });
  };
  job.events.piece = [run, index](ChoicePiece piece) { run->add_piece(index, std::move(piece)); };
  job.events.choice_ended = [run, index](ChoiceEnd end) {
    run->after_pieces([index, end = std::move(end)](GenerationRun& self) { self.choice_ended(index, end); });
  };
  job.events.done = [run, index] { run->after_pieces([index](GenerationRun& self) { self.part_done(index); }); };
  job.events.failed = [run, index](const ApiError& error) {
    run->after_pieces([index, error](GenerationRun& self) {
      self.active_.erase(index);
      self.fail(error);
    });
  };
  return job;
}

void GenerationRun::submit() {
  const auto count = static_cast<int64_t>(plan_.parts.size());
  std::vector<GenerationJob> jobs;
  jobs.reserve(plan_.parts.size());
  for (int64_t part = 0; part < count; ++part) jobs.push_back(job_of(part));
  jobs_ = service_.submit(std::move(jobs));
  for (int64_t part = 0; part < count; ++part) active_.insert(part);
}

std::string GenerationRun::store(const std::shared_ptr<const SequenceState>& state, const GenerationPart& part) {
  if (state == nullptr || states_ == nullptr) return "";
  NewState about{.owner = plan_.owner};
  about.parent = part.parent;
  about.label = plan_.states_label;
  about.ttl = fields_.store.ttl_seconds;
  about.uploaded = part.uploaded;
  return states_->put(state, about).id;
}

void GenerationRun::prompt_read(int64_t part, const PromptRead& prompt) {
  usage_.prompt_tokens += prompt.prompt_tokens;
  usage_.cached_tokens += prompt.cached_tokens;
  reply_->prompt_read(part, prompt, store(prompt.state, plan_.parts[static_cast<size_t>(part)]));
}

// Pieces of a choice that come before an earlier one is written are joined with it, so that replies keep pace with the engine: one event
// with several tokens costs little more than one with one.
void GenerationRun::add_piece(int64_t part, ChoicePiece piece) {
  if (batch_ != nullptr && batch_->add(part, piece)) return;
  batch_ = std::make_shared<PieceBatch>();
  batch_->add(part, piece);
  later([batch = batch_](GenerationRun& self) { self.write_pieces(batch); });
}

void GenerationRun::write_pieces(const std::shared_ptr<PieceBatch>& batch) {
  waiting_ = batch;
  const auto written = [weak = weak_from_this(), batch] {
    const auto run = weak.lock();
    if (run == nullptr) return;
    run->later([batch](GenerationRun& self) {
      if (self.waiting_ == batch) self.write_waiting_pieces();
    });
  };
  if (reply_->is_written(written)) write_waiting_pieces();
}

void GenerationRun::write_waiting_pieces() {
  const auto batch = std::exchange(waiting_, nullptr);
  if (batch == nullptr) return;
  for (const auto& [part, piece] : batch->take()) reply_->piece(part, piece);
}

void GenerationRun::choice_ended(int64_t part, const ChoiceEnd& end) {
  if (end.finish_reason == "not_finite")
    throw ApiError::failed("the model's logits are not finite after " + std::to_string(end.tokens) + " generated tokens");
  usage_.completion_tokens += end.tokens;
  reply_->choice_ended(part, end, store(end.state, plan_.parts[static_cast<size_t>(part)]));
}

void GenerationRun::part_done(int64_t part) {
  active_.erase(part);
  if (!active_.empty()) return;
  ended_ = true;
  reply_->done(usage_);
}

void GenerationRun::fail(const ApiError& error) {
  if (error.status() >= 500) log_warning("request " + plan_.request_id + ": " + error.what());
  ended_ = true;
  stop_jobs();
  reply_->failed(error);
}

void GenerationRun::stop_jobs() {
  for (const int64_t part : active_) service_.cancel(jobs_[static_cast<size_t>(part)]);
  active_.clear();
}

void start_run(const std::shared_ptr<GenerationRun>& run, const std::shared_ptr<Responder>& responder) {
  run->start();
  responder->on_close([weak = std::weak_ptr(run)] {
    if (const auto open = weak.lock()) open->cancel();
  });
}

}  // namespace based
