// A run of some seconds on a text of one line over and over.
#pragma once
#include <filesystem>
#include <fstream>
#include <string>

#include "based/train/checkpoints.h"
#include "based/train/text_run.h"
#include "tests/core/temporary_folder.h"

namespace based {

inline std::string write_text(const TemporaryFolder& folder) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "the quick brown fox jumps over the lazy dog, " + std::to_string(i % 7) + " times.\n";
  std::ofstream(folder.file("text.txt")) << text;
  return folder.file("text.txt");
}

inline TextRun small_run(const TemporaryFolder& folder) {
  TextRun run;
  run.model = Config(Config::Table{{"preset", Config(std::string("based-tiny"))}});
  run.data.train = write_text(folder);
  run.data.tokenizer = "bytes";
  run.train.steps = 30;
  run.train.batch = 4;
  run.train.length = 32;
  run.train.evaluate_every = 10;
  run.train.evaluate_batches = 2;
  run.optimizer.learning_rate = 1e-2;
  return run;
}

// As if the run had been killed between the checkpoint of `step` and the next one.
inline void take_back_to(const std::string& out, int64_t step) {
  Checkpoints checkpoints(out + "/checkpoints", 1);
  for (const int64_t one : checkpoints.steps())
    if (one > step) std::filesystem::remove_all(checkpoints.path(one));
  for (const char* name : {"model.safetensors", "config.json", "tokenizer.json"}) std::filesystem::remove(out + "/" + name);
}

}  // namespace based
