// A run's checkpoints, as folders that are whole or not there:
//
//   checkpoints/step-120/        the files of one, and their manifest (core/manifest.h)
//   checkpoints/latest, best     links to the newest and to the one whose evaluation was the best
//   checkpoints/step-130.tmp/    being written or removed; swept away by the next run
//
// A save stages step-N.tmp, each file synced, writes the manifest, syncs the folder, renames it to step-N, syncs the parent, moves the
// links, and only then removes what is no longer kept: at any moment the newest whole checkpoint is as good as it was.
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
  // `folder` is made by the first save. `keep`: how many of the newest stay, besides the best.
  Checkpoints(std::string folder, int64_t keep);

  std::vector<int64_t> steps() const;  // ascending, damaged ones too
  std::string path(int64_t step) const;

  // `write` fills the folder it is given with synced files. `best`: the step of the best evaluation, below 0: none. Where anything fails,
  // the disk being full among it, the staged folder is removed, those that were there stay, and Error is thrown.
  void save(int64_t step, int64_t best, const std::function<void(const std::string& folder)>& write);

  // The newest whose manifest fits; damaged newer ones are reported as warnings and set aside as damaged-step-N. None where there is no
  // checkpoint; throws Error where there are some and all are damaged.
  std::optional<int64_t> newest_whole();
  void sweep();  // removes what an interrupted save or removal left

 private:
  void link(const char* name, int64_t step) const;
  int64_t linked_best() const;  // below 0: none
  void prune(int64_t newest, int64_t best) const;
  void remove(int64_t step) const;

  std::string folder_;
  int64_t keep_;
};

}  // namespace based
