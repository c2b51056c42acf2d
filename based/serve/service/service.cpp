#include "based/serve/service/service.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

#include "based/core/log.h"
#include "based/core/profile.h"
#include "based/generate/cells.h"
#include "based/serve/service/job_scheduler.h"
#include "based/serve/service/metrics.h"

namespace based {
namespace {

constexpr int kRetryAfterSeconds = 1;
constexpr int64_t kSliceCpu = 256, kSliceCuda = 1024;
constexpr int64_t kPrefillCpu = 256;                                // a GPU's rounds are longer: it reads many tokens in the time of 256
constexpr int64_t kIdleSlotStepsCuda = 4, kDeferredStepsCuda = 16;  // EngineOptions::max_idle_slot_steps, max_deferred_steps
constexpr std::chrono::milliseconds kDeadlineInterval(50);          // between checks of deadlines while there is nothing to compute

EngineOptions engine_options_of(const ServiceOptions& options, torch::Device device) {
  if (options.slots < 0) throw UsageError("--slots must be 0 or more, got " + std::to_string(options.slots));
  if (options.prefill_tokens < 0) throw UsageError("--prefill-tokens must be 0 or more, got " + std::to_string(options.prefill_tokens));
  if (options.slice_tokens < -1) throw UsageError("--slice-tokens must be -1 or more, got " + std::to_string(options.slice_tokens));
  if (options.parked_bytes < 0) throw UsageError("--parked-bytes must be 0 or more, got " + std::to_string(options.parked_bytes));
  if (options.max_waiting_jobs < 1) throw UsageError("--max-waiting-jobs must be 1 or more");
  if (!(options.deadline_seconds > 0) || options.deadline_seconds > 1e9) throw UsageError("--deadline-seconds must be above 0");
  EngineOptions engine;
  engine.slots = options.slots > 0 ? options.slots : device.is_cuda() ? 128 : 8;
  engine.prefill_tokens = options.prefill_tokens;
  if (options.prefill_tokens == 0 && device.is_cpu()) engine.prefill_tokens = kPrefillCpu;
  if (device.is_cuda()) {
    engine.max_idle_slot_steps = kIdleSlotStepsCuda;
    engine.max_deferred_steps = kDeferredStepsCuda;
  }
  engine.cache_tokens = options.cache_tokens;
  engine.ahead = device.is_cuda();
  engine.decode.invariant = options.invariant;
  return engine;
}

}  // namespace

struct Service::Implementation {
  struct Submitted {
    JobId id = 0, request = 0;
    GenerationJob job;
    JobScheduler::Clock::time_point at;
  };

  Implementation(const TextModel& model, const ServiceOptions& given, std::shared_ptr<PrefixSource> source, ServiceMetrics& metrics,
                 StepHooks step_hooks)
      : options(given),
        hooks(std::move(step_hooks)),
        prefixes(std::move(source)),
        engine(*model.model, engine_options_of(given, model.model->device())),
        scheduler(engine, *model.tokenizer, scheduler_options(model.model->device()), metrics) {}

  JobSchedulerOptions scheduler_options(torch::Device device);
  static void check(const GenerationJob& job);
  void run();
  void run_round(std::vector<Submitted>& submitted, const std::vector<JobId>& cancelled);
  bool take_commands(std::vector<Submitted>& submitted, std::vector<JobId>& cancelled);
  void publish();

  const ServiceOptions options;
  const StepHooks hooks;
  const std::shared_ptr<PrefixSource> prefixes;
  std::mutex mutex;  // guards the queues and flags below
  std::condition_variable changed, ended;
  std::vector<Submitted> incoming;
  std::vector<JobId> cancels;
  JobId next_id = 1;
  bool stops = false, cancels_all = false, idle = true, woken = false;
  Engine engine;
  JobScheduler scheduler;
  std::atomic<bool> draining{false};
  std::atomic<int64_t> running{0}, waiting{0}, sequences{0}, parked_bytes{0}, state_bytes{engine.state_bytes()};
  std::thread thread;
};

JobSchedulerOptions Service::Implementation::scheduler_options(torch::Device device) {
  JobSchedulerOptions made;
  if (options.invariant) made.cell = cell_tokens(device.type());
  made.slice_tokens = options.slice_tokens >= 0 ? options.slice_tokens : device.is_cuda() ? kSliceCuda : kSliceCpu;
  made.parked_bytes = options.parked_bytes;
  made.prefixes = prefixes.get();
  made.wake = [this] {
    const std::lock_guard lock(mutex);
    woken = true;
    changed.notify_all();
  };
  return made;
}

void Service::Implementation::check(const GenerationJob& job) {
  if (job.ids.empty() && !job.start) throw ApiError::invalid("prompt", "the prompt is empty: generation needs at least one token");
  if (job.choices < 1) throw ApiError::invalid("n", "n must be 1 or more, got " + std::to_string(job.choices));
  if (job.max_tokens < 0) throw ApiError::invalid("max_tokens", "max_tokens must be 0 or more");
  if (job.top_log_probabilities < 0 || job.top_log_probabilities > kMostTopLogProbabilities)
    throw ApiError::invalid("logprobs", "at most " + std::to_string(kMostTopLogProbabilities) + " log-probabilities are reported");
  if (std::any_of(job.stops.begin(), job.stops.end(), [](const std::string& stop) { return stop.empty(); }))
    throw ApiError::invalid("stop", "a stop string must not be empty");
  try {
    check_sampling_options(job.sampling);
  } catch (const UsageError& error) {
    throw ApiError::invalid("", error.what());
  }
}

// Waits for work. Returns false if the service has ended.
bool Service::Implementation::take_commands(std::vector<Submitted>& submitted, std::vector<JobId>& cancelled) {
  const bool has_work = scheduler.has_work();  // without the mutex, which JobSchedulerOptions::wake locks
  std::unique_lock lock(mutex);
  if (scheduler.idle() && incoming.empty()) {
    idle = true;
    ended.notify_all();
  }
  const auto ready = [&] { return has_work || woken || stops || cancels_all || !incoming.empty() || !cancels.empty(); };
  if (scheduler.idle())
    changed.wait(lock, ready);
  else
    changed.wait_for(lock, kDeadlineInterval, ready);
  woken = false;
  submitted = std::exchange(incoming, {});
  waiting = scheduler.waiting_jobs() + static_cast<int64_t>(submitted.size());  // before submit() can count the queue again
  cancelled = std::exchange(cancels, {});
  if (std::exchange(cancels_all, false)) {
    lock.unlock();
    const ApiError why = ApiError::unavailable("the server is shutting down");
    for (Submitted& one : submitted) scheduler.add(one.id, one.request, std::move(one.job), one.at);
    submitted.clear();
    scheduler.cancel_all(why);
    lock.lock();
  }
  return !stops || !scheduler.idle() || !submitted.empty();
}

void Service::Implementation::publish() {
  waiting = scheduler.waiting_jobs();
  running = scheduler.running_jobs();
  sequences = scheduler.sequences();
  parked_bytes = scheduler.parked_bytes();
  if (engine.state().grows()) state_bytes = engine.state_bytes();
}

void Service::Implementation::run_round(std::vector<Submitted>& submitted, const std::vector<JobId>& cancelled) {
  if (hooks.begin) hooks.begin();
  try {
    for (Submitted& one : submitted) scheduler.add(one.id, one.request, std::move(one.job), one.at);
    for (const JobId id : cancelled) scheduler.cancel(id, ApiError(499, "cancelled", "the client has closed the connection"));
    scheduler.expire(JobScheduler::Clock::now());
    publish();
    if (scheduler.has_work()) scheduler.step();
  } catch (const std::exception& error) {
    log_error(std::string("generation: ") + error.what());
    scheduler.cancel_all(ApiError::failed(std::string("generation failed: ") + error.what()));
  }
  publish();
  if (hooks.end) hooks.end();
}

void Service::Implementation::run() {
  name_profile_thread("engine");
  const torch::InferenceMode inference;
  std::vector<Submitted> submitted;
  std::vector<JobId> cancelled;
  while (take_commands(submitted, cancelled)) run_round(submitted, cancelled);
  const std::lock_guard lock(mutex);
  idle = true;
  ended.notify_all();
}

Service::Service(const TextModel& model, const ServiceOptions& options, std::shared_ptr<PrefixSource> prefixes, ServiceMetrics& metrics,
                 StepHooks hooks)
    : implementation_(std::make_unique<Implementation>(model, options, std::move(prefixes), metrics, std::move(hooks))) {
  Implementation* const inner = implementation_.get();
  inner->thread = std::thread([inner] { inner->run(); });
}

Service::~Service() {
  implementation_->draining = true;
  {
    const std::lock_guard lock(implementation_->mutex);
    implementation_->stops = implementation_->cancels_all = true;
    implementation_->changed.notify_all();
  }
  implementation_->thread.join();
}

std::vector<Service::JobId> Service::submit(std::vector<GenerationJob> jobs) {
  Implementation& inner = *implementation_;
  for (const GenerationJob& job : jobs) Implementation::check(job);
  const auto now = JobScheduler::Clock::now();
  const auto deadline =
      now + std::chrono::duration_cast<JobScheduler::Clock::duration>(std::chrono::duration<double>(inner.options.deadline_seconds));
  if (static_cast<int64_t>(jobs.size()) > inner.options.max_waiting_jobs)
    throw ApiError::too_large("", "the request has " + std::to_string(jobs.size()) + " prompts, and at most " +
                                      std::to_string(inner.options.max_waiting_jobs) + " may wait at this server: send fewer at a time");
  const std::lock_guard lock(inner.mutex);
  if (inner.draining) throw ApiError::unavailable("the server is shutting down");
  const int64_t waiting = inner.waiting + static_cast<int64_t>(inner.incoming.size());
  if (waiting + static_cast<int64_t>(jobs.size()) > inner.options.max_waiting_jobs)
    throw ApiError::overloaded("the server has " + std::to_string(waiting) + " waiting prompts, of at most " +
                                   std::to_string(inner.options.max_waiting_jobs) + "; try again later",
                               kRetryAfterSeconds);
  std::vector<JobId> ids;
  ids.reserve(jobs.size());
  for (GenerationJob& job : jobs) {
    if (!job.deadline || *job.deadline > deadline) job.deadline = deadline;
    ids.push_back(inner.next_id++);
    inner.incoming.push_back({ids.back(), ids.front(), std::move(job), now});
  }
  inner.idle = false;
  inner.changed.notify_all();
  return ids;
}

Service::JobId Service::submit(GenerationJob job) {
  std::vector<GenerationJob> jobs;
  jobs.push_back(std::move(job));
  return submit(std::move(jobs)).front();
}

void Service::cancel(JobId job) {
  const std::lock_guard lock(implementation_->mutex);
  implementation_->cancels.push_back(job);
  implementation_->changed.notify_all();
}

void Service::drain(double seconds) {
  Implementation& inner = *implementation_;
  std::unique_lock lock(inner.mutex);
  inner.draining = true;
  if (inner.ended.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return inner.idle; })) return;
  inner.cancels_all = true;
  inner.changed.notify_all();
  inner.ended.wait(lock, [&] { return inner.idle; });
}

bool Service::draining() const { return implementation_->draining; }
int64_t Service::running_jobs() const { return implementation_->running; }
int64_t Service::waiting_jobs() const { return implementation_->waiting; }
int64_t Service::slots() const { return implementation_->engine.slots(); }
int64_t Service::free_slots() const { return slots() - implementation_->sequences; }
int64_t Service::state_bytes() const { return implementation_->state_bytes; }
int64_t Service::parked_bytes() const { return implementation_->parked_bytes; }

}  // namespace based
