// One rule for all commands that write a folder: nothing that is in it is replaced, or put beside what does not go with it, without a word.
// docs/files.md, "What is there already", says it for users.
#pragma once
#include <string>
#include <vector>

#include "based/core/error.h"
#include "based/core/folder_lock.h"

namespace based {

// Something that a folder can hold, known by its files.
struct Holding {
  std::string what;                // "a model"
  std::vector<std::string> names;  // "*.tokens": all names with this end
};

// What the commands of the program leave.
Holding model_holding();        // config.json, model.safetensors
Holding tokenizer_holding();    // tokenizer.json, vocab.json, merges.txt
Holding checkpoints_holding();  // checkpoints
Holding shards_holding();       // *.tokens

// The name of the first file of `holding` that `folder` has; "" where it has none, or is none.
std::string held(const std::string& folder, const Holding& holding);

struct OutputRule {
  std::string option = "--out";
  std::vector<Holding> own = {};      // what the command writes: replaced where --overwrite says so
  std::vector<Holding> foreign = {};  // what would no longer be whole beside that: never replaced
  bool can_overwrite = true;          // whether the command has --overwrite
};

// Throws UsageError, which names the file and the remedy, where `folder` holds what the rule keeps.
void require_free(const std::string& folder, const OutputRule& rule, bool overwrite);

// The folder of a command that writes all of its files at the end. It is made where it is absent, checked, and locked as long as this
// lives. Unless `keep` is called, what the command wrote in part is removed, so that the same command can be given again.
class OutputFolder {
 public:
  OutputFolder(const std::string& folder, OutputRule rule, bool overwrite);
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;
  ~OutputFolder();

  void keep() { kept_ = true; }

 private:
  std::string folder_;
  OutputRule rule_;
  FolderLock lock_;
  bool kept_ = false;
};

}  // namespace based
