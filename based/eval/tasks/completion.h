// Completion tasks: the log-likelihood of one text after each context, and whether greedy decoding would produce it.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "based/eval/task.h"

namespace based {

struct CompletionItem {
  std::string place;  // "<file>:<line>"
  Json source;
  std::string context;
  std::string continuation;  // with its delimiter
};

// The metrics are perplexity = exp(−mean log-likelihood of a continuation), with the bootstrap's standard error, and acc.
std::unique_ptr<EvalTask> make_completion_task(std::vector<CompletionItem> items);

}  // namespace based
