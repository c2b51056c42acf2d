// Runs jobs on an engine, in one thread. A job's prompt is read in stages: to each of the prefix plan's cuts, to the end of the prompt if
// several choices or a stored state continue from there, and otherwise as the begin of its only choice. Each stage and each choice is one
// sequence of the engine. The engine is given no more sequences than it has slots; the rest is kept here, as shared states and token ids.
//
// Free slots go to the clients in turn (service/fair_queue.h). A choice gives its slot back after every slice_tokens tokens if sequences of
// other requests are queued, and continues from its state later. The state of a long text is therefore saved after each slice, which does
// not change its tokens.
#pragma once
#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "based/generate/engine.h"
#include "based/generate/text_generator.h"
#include "based/generate/text_stream.h"
#include "based/serve/service/fair_queue.h"
#include "based/serve/service/job.h"
#include "based/serve/service/metrics.h"
#include "based/serve/service/prefix_source.h"

namespace based {

struct JobSchedulerOptions {
  int64_t cell = 0;                         // the tokens of a cell if the engine is invariant, otherwise 0
  int64_t slice_tokens = 0;                 // 0: a choice keeps its slot to its end; so it does if its state grows
  int64_t parked_bytes = int64_t{1} << 30;  // choices keep their slots if the states of those without would exceed this
  PrefixSource* prefixes = nullptr;         // may be null
  std::function<void()> wake = {};          // called by another thread when has_work() may have become true; it must not call the scheduler
};

class JobScheduler {
 public:
  using JobId = int64_t;
  using Clock = std::chrono::steady_clock;

  // All references must outlive this.
  JobScheduler(Engine& engine, const Tokenizer& tokenizer, JobSchedulerOptions options, ServiceMetrics& metrics);
  ~JobScheduler();
  JobScheduler(const JobScheduler&) = delete;
  JobScheduler& operator=(const JobScheduler&) = delete;

  // `request`: a number that the jobs of one request share, and no others.
  void add(JobId id, JobId request, GenerationJob job, Clock::time_point submitted);
  void cancel(JobId id, const ApiError& why);  // no effect if the job has ended
  void cancel_all(const ApiError& why);
  void expire(Clock::time_point now);  // cancels jobs whose deadlines have passed
  // Starts sequences in free slots, makes one step of the engine, and calls the events of the jobs concerned.
  void step();

  bool idle() const { return runs_.empty(); }
  // False if step() has nothing to do: there are no jobs, or the states of all prompts are still being read from disk.
  bool has_work() const;
  int64_t running_jobs() const;  // with at least one sequence in a slot
  int64_t waiting_jobs() const { return static_cast<int64_t>(runs_.size()) - running_jobs(); }
  int64_t parked_bytes() const { return parked_bytes_; }  // the states of choices that have given their slots to others
  int64_t sequences() const { return static_cast<int64_t>(sequences_.size()); }

 private:
  using SharedState = std::shared_ptr<const SequenceState>;

  struct Choice {
    explicit Choice(TextStream text_stream) : stream(std::move(text_stream)) {}
    TextStream stream;
    GeneratedText out;
    std::string rest;          // the text that was held back until the end, while the end's state is made
    SharedState slice;         // the state from which it continues after a slice
    int64_t parked_bytes = 0;  // the part of JobScheduler::parked_bytes() that is its own
    Clock::time_point last_token;
  };
  struct Run {
    GenerationJob job;
    JobId request = 0;
    std::vector<int64_t> ids;  // the whole prompt, with the tokens of GenerationJob::start
    Clock::time_point submitted;
    std::optional<Clock::time_point> started_at, prompt_read_at;  // for the profile
    bool started = false, prompt_reported = false, first_token_seen = false;
    PrefixPlan plan;
    std::vector<int64_t> cuts;  // where reading the prompt is interrupted: the plan's, and the last token if `reads_all`
    bool reads_all = false;     // a stage reads the prompt to its end
    size_t next_cut = 0;
    SharedState base;  // the state that the next sequence continues; null: none
    int64_t cached_tokens = 0, ended = 0;
    std::vector<TokenScore> scores;  // they begin with that of `ids[first_reported()]`
    std::vector<Choice> choices;

    // The index in `ids` of the first token whose log-probability is reported: the first new one that has a token before it.
    int64_t first_reported() const { return std::max<int64_t>(1, static_cast<int64_t>(ids.size() - job.ids.size())); }
    // The index in `ids` of the first token without a score.
    int64_t next_scored() const { return first_reported() + static_cast<int64_t>(scores.size()); }
    bool scores_left() const { return job.prompt_log_probabilities && next_scored() < static_cast<int64_t>(ids.size()); }
    bool keeps_end() const { return plan.keep_end || job.keep_end_state; }  // the states at the ends of choices are kept
  };
  // A sequence that is to be started, or that the engine has.
  struct Unit {
    enum class Kind { prompt, choice, end_state } kind = Kind::prompt;
    JobId job = 0;
    int64_t choice = 0;
  };

  // Plans that were read from disk, by another thread.
  struct Plans {
    std::mutex mutex;
    std::vector<std::pair<JobId, PrefixPlan>> ready;
    std::function<void()> wake;  // empty after the scheduler's end
  };

  void push(const Unit& unit, bool first = false);
  void take_plans();
  void fill_slots();
  void start(const Unit& unit);
  bool request_plan(JobId id, Run& run);
  void begin_prompt(Run& run);
  void start_prompt_stage(const Unit& unit, Run& run);
  void finish_prompt(const Unit& unit, Run& run);
  void start_choice(const Unit& unit, Run& run);
  void start_end_state(const Unit& unit, Run& run);
  int64_t add_sequence(const SharedState& base, std::vector<int64_t> ids, const SequenceOptions& options);
  bool continues_base(const Run& run) const;
  bool base_covers(const Run& run, int64_t cut) const;

  void take_output(const Engine::Output& output);
  void finish_prompt_stage(const Unit& unit, Run& run, int64_t sequence);
  void keep_scores(Run& run, int64_t sequence) const;
  static std::shared_ptr<const PromptScores> scores_of_state(const Run& run, const SequenceState& state);
  void report_prompt(Run& run);
  void take_token(const Unit& unit, Run& run, const Engine::Output& output);
  int64_t tokens_of_slice(const Run& run, const Choice& choice) const;
  void end_slice(const Unit& unit, Run& run, int64_t sequence);
  void finish_choice(const Unit& unit, Run& run, const Engine::Output& output);
  void end_choice(const Unit& unit, Run& run, std::string rest, SharedState state);
  SharedState take_state(int64_t sequence);
  static void add_profile_spans(JobId id, const Run& run);  // called at the job's end
  void insert_prefix(const Run& run, const SharedState& state, std::shared_ptr<const PromptScores> scores);
  void end_job(JobId id);

  Engine& engine_;
  const Tokenizer& tokenizer_;
  const JobSchedulerOptions options_;
  ServiceMetrics& metrics_;
  std::shared_ptr<Plans> plans_;
  std::map<JobId, std::unique_ptr<Run>> runs_;   // in the order of arrival
  std::deque<Unit> resumed_;                     // units of jobs that had slots; they are started first
  FairQueue<Unit> queue_;                        // the other units that are to be started
  std::unordered_map<int64_t, Unit> sequences_;  // by the engine's number
  int64_t parked_bytes_ = 0;
};

}  // namespace based
