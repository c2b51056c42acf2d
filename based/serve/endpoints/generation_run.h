// One request for generated text: its parts become jobs of the service, their events become one reply.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "based/serve/endpoints/task_queue.h"
#include "based/serve/http/exchange.h"
#include "based/serve/protocol/generation_fields.h"
#include "based/serve/protocol/reply_text.h"
#include "based/serve/service/service.h"
#include "based/serve/states/state_store.h"

namespace based {

// One prompt, with the stored state that it continues.
struct GenerationPart {
  std::vector<int64_t> ids;
  std::shared_ptr<const SequenceState> start = {};  // null: none
  std::string parent = {};                          // the id of `start`
  bool uploaded = false;                            // StateInfo::uploaded of `start`
  std::vector<int64_t> boundaries = {};             // GenerationJob::boundaries
};

struct GenerationPlan {
  std::string owner, client, request_id;  // set_sender() sets them
  std::vector<GenerationPart> parts;
  int64_t choices = 1;  // for each part
  bool score_prompt = false;
  int64_t top_log_probabilities = 0;
  AllowedTokens allowed = {};
  bool keep_end_state = false;    // ChoiceEnd::state is set, for a reply that stores it itself
  std::string states_label = {};  // StateInfo::label of the states that are stored
};

// Sets the fields that say who has sent the request. A client is an API key, or an address if the server has no keys.
inline void set_sender(GenerationPlan& plan, const HttpRequest& http) {
  plan.owner = http.owner;
  plan.client = http.owner.empty() ? http.remote : http.owner;
  plan.request_id = http.id;
}

// Writes the reply of one kind of endpoint. All functions are called one after another, on threads of a TaskQueue. They may throw, which
// fails the request. `state`: the id of the stored state, or "".
class GenerationReply {
 public:
  virtual ~GenerationReply() = default;
  virtual void begin() = 0;  // the jobs have been accepted
  // As Responder::is_written(). Pieces that come while it is false are joined.
  virtual bool is_written(std::function<void()> callback) = 0;
  virtual void prompt_read(int64_t part, const PromptRead& prompt, const std::string& state) = 0;
  virtual void piece(int64_t part, const ChoicePiece& piece) = 0;
  virtual void choice_ended(int64_t part, const ChoiceEnd& end, const std::string& state) = 0;
  virtual void done(const Usage& usage) = 0;
  virtual void failed(const ApiError& error) = 0;  // may follow any of the others except done(); the last call
};

class GenerationRun : public std::enable_shared_from_this<GenerationRun> {
 public:
  // `service`, `queue` and `states` must outlive the run. `states` may be null if the request stores none.
  GenerationRun(Service& service, TaskQueue& queue, StateStore* states, GenerationFields fields, GenerationPlan plan,
                std::unique_ptr<GenerationReply> reply);

  // Submits the jobs of all parts, or none if the service refuses them. The run lives until its jobs have ended.
  void start();
  void cancel();  // the client has gone; from any thread

 private:
  struct PieceBatch;
  template <class Action>
  void later(Action action);
  template <class Action>
  void after_pieces(Action action);
  void submit();
  GenerationJob job_of(int64_t part);
  std::string store(const std::shared_ptr<const SequenceState>& state, const GenerationPart& part);
  void prompt_read(int64_t part, const PromptRead& prompt);
  void add_piece(int64_t part, ChoicePiece piece);
  void write_pieces(const std::shared_ptr<PieceBatch>& batch);
  void write_waiting_pieces();
  void choice_ended(int64_t part, const ChoiceEnd& end);
  void part_done(int64_t part);
  void fail(const ApiError& error);
  void stop_jobs();

  Service& service_;
  TaskSequence tasks_;
  StateStore* states_;
  GenerationFields fields_;
  GenerationPlan plan_;
  std::unique_ptr<GenerationReply> reply_;
  std::shared_ptr<PieceBatch> batch_;  // the pieces that the last event added to. Only used by the events of the jobs.
  // Only used by tasks.
  std::vector<Service::JobId> jobs_;  // one for each part
  std::set<int64_t> active_;          // parts whose job has not ended
  Usage usage_;
  std::shared_ptr<PieceBatch> waiting_;  // pieces that wait until those before them are written
  bool ended_ = false;
};

// Starts the run, and cancels it when the client goes.
void start_run(const std::shared_ptr<GenerationRun>& run, const std::shared_ptr<Responder>& responder);

}  // namespace based
