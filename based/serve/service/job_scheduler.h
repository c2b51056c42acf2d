// Runs jobs on an engine, in one thread. A job's prompt is read in stages: to each of the prefix plan's cuts, to the end of the prompt if
// several choices or a stored state continue from there, and otherwise as the begin of its only choice. Each stage and each choice is one
// sequence of the engine. The engine is given no more sequences than it has slots; the rest is kept here, as shared states and token ids.
#pragma once
#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "based/generate/engine.h"
#include "based/generate/text_generator.h"
#include "based/generate/text_stream.h"
#include "based/serve/service/job.h"
#include "based/serve/service/metrics.h"
#include "based/serve/service/prefix_source.h"

namespace based {

class JobScheduler {
 public:
  using JobId = int64_t;
  using Clock = std::chrono::steady_clock;

  // `cell`: the tokens of a cell if the engine is invariant, otherwise 0. `prefixes` may be null. All references must outlive this.
  JobScheduler(Engine& engine, const Tokenizer& tokenizer, int64_t cell, PrefixSource* prefixes, ServiceMetrics& metrics);

  void add(JobId id, GenerationJob job, Clock::time_point submitted);
  void cancel(JobId id, const ApiError& why);  // no effect if the job has ended
  void cancel_all(const ApiError& why);
  void expire(Clock::time_point now);  // cancels jobs whose deadlines have passed
  // Starts sequences in free slots, makes one step of the engine, and calls the events of the jobs concerned.
  void step();

  bool idle() const { return runs_.empty(); }
  int64_t waiting_jobs() const { return waiting_jobs_; }
  int64_t running_jobs() const { return static_cast<int64_t>(runs_.size()) - waiting_jobs_; }
  int64_t sequences() const { return static_cast<int64_t>(sequences_.size()); }

 private:
  using SharedState = std::shared_ptr<const SequenceState>;

  struct Choice {
    explicit Choice(TextStream text_stream) : stream(std::move(text_stream)) {}
    TextStream stream;
    GeneratedText out;
    std::string rest;  // the text that was held back until the end, while the end's state is made
    Clock::time_point last_token;
  };
  struct Run {
    GenerationJob job;
    std::vector<int64_t> ids;  // the whole prompt, with the tokens of GenerationJob::start
    Clock::time_point submitted;
    bool started = false, prompt_reported = false, first_token_seen = false;
    PrefixPlan plan;
    std::vector<int64_t> cuts;  // where reading the prompt is interrupted: the plan's, and the last token if `reads_all`
    bool reads_all = false;     // a stage reads the prompt to its end
    size_t next_cut = 0;
    SharedState base;  // the state that the next sequence continues; null: none
    int64_t cached_tokens = 0, ended = 0;
    std::vector<TokenScore> scores;
    int64_t first_scored = 0;  // an index of `ids`
    std::vector<Choice> choices;

    // The index in `ids` of the first token whose log-probability is reported: the first new one that has a token before it.
    int64_t first_reported() const { return std::max<int64_t>(1, static_cast<int64_t>(ids.size() - job.ids.size())); }
    bool keeps_end() const { return plan.keep_end || job.keep_end_state; }  // the states at the ends of choices are kept
  };
  // A sequence that is to be started, or that the engine has.
  struct Unit {
    enum class Kind { prompt, choice, end_state } kind = Kind::prompt;
    JobId job = 0;
    int64_t choice = 0;
  };

  void fill_slots();
  void start(const Unit& unit);
  void start_job(Run& run);
  void start_prompt_stage(const Unit& unit, Run& run);
  void finish_prompt(const Unit& unit, Run& run);
  void start_choice(const Unit& unit, Run& run);
  void start_end_state(const Unit& unit, Run& run);
  int64_t add_sequence(const Run& run, std::vector<int64_t> ids, const SequenceOptions& options);
  bool continues_base(const Run& run) const;
  bool base_covers(const Run& run, int64_t cut) const;

  void take_output(const Engine::Output& output);
  void finish_prompt_stage(const Unit& unit, Run& run, int64_t sequence);
  void keep_scores(Run& run, int64_t sequence) const;
  void report_prompt(Run& run);
  void take_token(const Unit& unit, Run& run, const Engine::Output& output);
  void finish_choice(const Unit& unit, Run& run, const Engine::Output& output);
  void end_choice(const Unit& unit, Run& run, std::string rest, SharedState state);
  SharedState take_state(int64_t sequence);
  void insert_prefix(const Run& run, const SharedState& state);
  void end_job(JobId id);

  Engine& engine_;
  const Tokenizer& tokenizer_;
  int64_t cell_;
  PrefixSource* prefixes_;
  ServiceMetrics& metrics_;
  std::map<JobId, std::unique_ptr<Run>> runs_;   // in the order of arrival
  std::deque<Unit> units_;                       // to be started, in this order
  std::unordered_map<int64_t, Unit> sequences_;  // by the engine's number
  int64_t waiting_jobs_ = 0;
};

}  // namespace based
