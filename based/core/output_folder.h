// The rule for all commands that write a folder: they replace files of an earlier command only if the user asks for it, and never write
// next to files that would be inconsistent with theirs. docs/files.md states the rule for users.
#pragma once
#include <string>
#include <vector>

#include "based/core/error.h"
#include "based/core/folder_lock.h"

namespace based {

// A kind of content of a folder, recognised by its files.
struct Holding {
  std::string what;                // its name in messages: "a model"
  std::vector<std::string> names;  // file names; "*.tokens" stands for all names with this suffix
};

// The kinds of output of the program.
Holding model_holding();        // config.json, model.safetensors
Holding tokenizer_holding();    // tokenizer.json, vocab.json, merges.txt
Holding checkpoints_holding();  // checkpoints
Holding shards_holding();       // *.tokens

// The name of the first file of `holding` that is in `folder`; "" if there is none, or if `folder` is not a folder.
std::string held(const std::string& folder, const Holding& holding);

struct OutputRule {
  std::string option = "--out";
  std::vector<Holding> own = {};      // written by the command: replaced if the user gives --overwrite
  std::vector<Holding> foreign = {};  // would no longer be consistent with `own`: never replaced
  bool can_overwrite = true;          // whether the command has --overwrite
};

// Throws UsageError, naming the file and the remedy, if `folder` holds files that the rule protects.
void require_free(const std::string& folder, const OutputRule& rule, bool overwrite);

// The output folder of a command that writes all of its files at the end. The constructor creates the folder if it is absent, checks it by
// the rule, and locks it for the object's lifetime. Unless keep() was called, the destructor removes incomplete output, so that the same
// command can be repeated.
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
