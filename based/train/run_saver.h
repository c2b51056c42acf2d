// Saves the checkpoints of a run while training continues.
#pragma once
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "based/data/tokenizer.h"
#include "based/train/background_save.h"
#include "based/train/checkpoints.h"
#include "based/train/run_state.h"

namespace based {

struct SavedRun {
  std::shared_ptr<LanguageModel> model;
  AdamW* optimizer = nullptr;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<Collectives> ranks;
  Metrics* metrics = nullptr;     // null on all ranks but 0
  Checkpoints* checkpoints = {};  // used from another thread while a save is running
  bool sharded = false;           // the ranks share the optimizer's state
};

// All ranks call the same functions in the same order. Rank 0 writes the files, and a save that fails there has failed on every rank. At
// most one save is running: the next one waits for it on all ranks, so the memory for copies never grows.
class RunSaver {
 public:
  // `before_write` is called by the writing thread with the checkpoint's folder before its files are written; may be null.
  RunSaver(SavedRun run, std::function<void(const std::string& folder)> before_write);

  // Copies weights and optimizer and starts writing them; returns when the copies are complete. `state`: its metrics are set here. A
  // failure, also one of this call, is returned by take_failure(). `best`: see Checkpoints::save.
  void begin(const RunState& state, int64_t best);
  // Waits on all ranks until the running save has ended.
  void finish();
  // The next failure that is known and was not returned before. Several ranks learn of failures in begin() and finish() only.
  std::optional<FailedSave> take_failure();

  const std::string& newest() const { return newest_; }                 // the folder of the last save that succeeded; empty: none
  double seconds() const { return seconds_; }                           // time spent in begin() and finish()
  void set_newest(std::string folder) { newest_ = std::move(folder); }  // the checkpoint that the run was resumed from

 private:
  void start(RunState state, int64_t best, NamedTensors optimizer);

  SavedRun run_;
  std::function<void(const std::string& folder)> before_write_;
  HostCopies weights_, optimizer_;
  int64_t pending_ = -1;       // step of the save that finish() has to wait for; −1: none
  std::string start_failure_;  // why the pending save could not be started
  std::deque<FailedSave> failures_;
  std::string newest_;
  double seconds_ = 0;
  BackgroundSave save_;  // last, so that it ends before the objects that it uses
};

}  // namespace based
