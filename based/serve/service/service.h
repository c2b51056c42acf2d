// Runs jobs on one engine. A thread of the service owns the engine and all its sequences: it adds the sequences of jobs while slots are
// free, makes steps, and reports the sampled tokens. A prompt is read in pieces of at most ServiceOptions::prefill_tokens between the steps
// of other sequences, so that a cancelled job leaves its slots within one piece and one step. Slots are shared fairly between clients
// (service/job_scheduler.h).
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "based/generate/engine.h"
#include "based/generate/text_model.h"
#include "based/serve/service/job.h"
#include "based/serve/service/prefix_source.h"

namespace based {

class ServiceMetrics;

struct ServiceOptions {
  int64_t slots = 0;
  int64_t prefill_tokens = 0;
  int64_t slice_tokens = -1;
  int64_t parked_bytes = int64_t{1} << 30;
  int64_t cache_tokens = 0;
  int64_t max_waiting_jobs = 4096;
  double deadline_seconds = 600;
  bool invariant = false;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("slots", slots, "sequences that are decoded at the same time, further ones wait; 0: 8 on the CPU, 128 on a GPU");
    field("prefill_tokens", prefill_tokens,
          "prompt tokens that are read between two steps of other sequences; 0: 256 on the CPU, 8192 on a GPU");
    field("slice_tokens", slice_tokens,
          "generated tokens after which a sequence gives its slot to a waiting one; 0: never; -1: 256 on the CPU, 1024 on a GPU");
    field("parked_bytes", parked_bytes,
          "bytes of the states of sequences that have given their slots to waiting ones; beyond it, sequences keep their slots");
    field("cache_tokens", cache_tokens, "for models with full attention: the tokens that all sequences together may have");
    field("max_waiting_jobs", max_waiting_jobs, "requests that may wait for a slot; further ones get status 429");
    field("deadline_seconds", deadline_seconds, "a request that takes longer ends with status 504");
    field("invariant", invariant, "make a sequence's bits depend only on its tokens and the model, not on its company; slower");
  }
};

// Called on the engine's thread before and after the events of each step, so that receivers in other threads can be woken once a step.
struct StepHooks {
  std::function<void()> begin = {}, end = {};
};

class Service {
 public:
  using JobId = int64_t;

  // `model` and `metrics` must outlive this; `prefixes` may be null. Throws UsageError for options out of range, and what Engine throws.
  Service(const TextModel& model, const ServiceOptions& options, std::shared_ptr<PrefixSource> prefixes, ServiceMetrics& metrics,
          StepHooks hooks = {});
  ~Service();  // cancels all jobs
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // Throws ApiError: 429 if the queue is full, 503 if the service is draining, 400 if the job can never run. Events may be called before
  // this returns.
  JobId submit(GenerationJob job);
  // The same for the jobs of one request: all are submitted, or none.
  std::vector<JobId> submit(std::vector<GenerationJob> jobs);
  void cancel(JobId job);  // no effect if it has ended

  // New jobs are refused from now on. Returns once all jobs have ended or `seconds` have passed; the rest are then cancelled.
  void drain(double seconds);
  bool draining() const;

  int64_t running_jobs() const;  // with at least one sequence in a slot
  int64_t waiting_jobs() const;  // without
  int64_t free_slots() const;
  int64_t slots() const;
  int64_t state_bytes() const;   // all slots of the engine
  int64_t parked_bytes() const;  // states of sequences that have given their slots to others

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace based
