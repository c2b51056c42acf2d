#include "based/train/run_saver.h"

#include <chrono>
#include <exception>
#include <utility>

#include "based/core/log.h"
#include "based/core/profile.h"
#include "based/core/progress.h"

namespace based {
namespace {

constexpr double kWorthLogging = 1;  // seconds

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

RunSaver::RunSaver(SavedRun run, std::function<void(const std::string& folder)> before_write)
    : run_(std::move(run)), before_write_(std::move(before_write)) {}

void RunSaver::begin(const RunState& state, int64_t best) {
  finish();
  const Stopwatch watch;
  NamedTensors optimizer = optimizer_tensors(*run_.optimizer, run_.sharded);
  pending_ = state.loop.step;
  if (run_.ranks->rank() == 0) {
    try {
      start(state, best, std::move(optimizer));
    } catch (const std::exception& error) {  // also an allocation that failed
      start_failure_ = error.what();
    }
  }
  seconds_ += watch.seconds();
}

void RunSaver::start(RunState state, int64_t best, NamedTensors optimizer) {
  state.metrics = run_.metrics->position();
  const NamedTensors weights = weights_.copy(named_weights(*run_.model));
  if (!run_.sharded) optimizer = optimizer_.copy(optimizer);  // else they are copies already
  save_.start([this, best, weights, state = std::move(state), optimizer = std::move(optimizer)] {
    name_profile_thread("checkpoint writer");
    const ProfileRange range(ProfileLevel::phases, "write checkpoint", {{"step", state.loop.step}});
    run_.checkpoints->save(state.loop.step, best, [&](const std::string& folder) {
      if (before_write_) before_write_(folder);
      run_.metrics->sync();
      save_model(run_.model->config(), weights, folder, run_.tokenizer->hash());
      run_.tokenizer->save(folder);
      save_run_state(folder, state, optimizer);
    });
  });
}

void RunSaver::finish() {
  if (pending_ < 0) return;
  const Stopwatch watch;
  const bool waits = save_.running();
  std::string reason = save_.wait();
  if (!start_failure_.empty()) reason = std::exchange(start_failure_, "");
  if (waits && watch.seconds() > kWorthLogging)
    log_info("the checkpoint of step " + std::to_string(pending_) + " was still being written; training waited for it " +
             format_duration(watch.seconds()));
  reason = run_.ranks->gather_text(reason)[0];
  if (reason.empty())
    newest_ = run_.checkpoints->path(pending_);
  else
    failures_.push_back({pending_, reason});
  pending_ = -1;
  seconds_ += watch.seconds();
}

std::optional<FailedSave> RunSaver::take_failure() {
  if (run_.ranks->world() == 1 && pending_ >= 0 && !save_.running()) finish();
  if (failures_.empty()) return std::nullopt;
  FailedSave failed = failures_.front();
  failures_.pop_front();
  return failed;
}

}  // namespace based
