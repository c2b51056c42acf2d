// The checkpoints of a training run. A checkpoint folder either is complete or does not exist:
//
//   checkpoints/step-120/        a checkpoint's files and their manifest (core/manifest.h)
//   checkpoints/latest, best     links to the newest checkpoint and to the one with the best evaluation
//   checkpoints/step-130.tmp/    a checkpoint that is being written or removed; the next run deletes it
//   checkpoints/damaged-step-N/  a checkpoint that did not match its manifest
//   checkpoints/aside-step-N/    a checkpoint after the step to which --resume-from returned
//
// A save writes and syncs each file in step-N.tmp, writes the manifest, syncs the folder, renames it to step-N, syncs the parent folder and
// moves the links. Only then does it remove old checkpoints. A crash at any moment therefore leaves the newest complete checkpoint intact.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "based/core/error.h"

namespace based {

class Checkpoints {
 public:
  // The first save creates `folder`. `keep`: how many of the newest checkpoints are kept, in addition to the best.
  Checkpoints(std::string folder, int64_t keep);

  std::vector<int64_t> steps() const;  // steps of all checkpoints, damaged ones included; ascending
  std::string path(int64_t step) const;

  // `write` writes synced files to the folder that it gets. `best`: the step of the best evaluation, negative if there is none. On any
  // failure, including a full disk, the temporary folder is removed, existing checkpoints are kept, and Error is thrown.
  void save(int64_t step, int64_t best, const std::function<void(const std::string& folder)>& write);

  // The step of the newest checkpoint whose files match its manifest; nullopt if there is no checkpoint. Newer, damaged checkpoints are
  // renamed to damaged-step-N with a warning. Throws Error if there are checkpoints and all are damaged.
  std::optional<int64_t> newest_whole();
  // Throws UsageError if there is no checkpoint of this step, and Error if it does not match its manifest.
  void require_whole(int64_t step) const;
  // Renames the checkpoints after `step` to aside-step-N, or aside-step-N-2 and so on if that exists. Moves the links to `step` and to
  // `best`, if that is the step of a checkpoint. Returns the new paths.
  std::vector<std::string> set_aside_after(int64_t step, int64_t best);
  // Puts a checkpoint back whose replacement by a save of the same step was interrupted. To be called before the steps are listed.
  void restore_replaced();
  void sweep();  // removes the temporary folders of interrupted saves and removals

 private:
  void link(const char* name, int64_t step) const;
  int64_t linked_best() const;  // the step that the link "best" names; negative if there is none
  void prune(int64_t newest, int64_t best) const;
  void remove(int64_t step) const;

  std::string folder_;
  int64_t keep_;
};

}  // namespace based
