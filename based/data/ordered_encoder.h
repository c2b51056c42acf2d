// Parses and encodes blocks of documents on several threads, and passes the results on in the order of the blocks.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "based/data/documents.h"
#include "based/data/tokenizer.h"

namespace based {

struct EncodedBlock {
  struct Document {
    size_t end;          // in `ids`; the document starts at the end of the one before
    std::string source;  // "": none
  };
  std::vector<int32_t> ids;         // each document ends with <|endoftext|> if the tokenizer has it
  std::vector<Document> documents;  // without the empty ones
  int64_t empty = 0;                // documents without a token
  int64_t text_bytes = 0;           // bytes of the documents that are not empty
  int64_t bytes_read = 0;           // as DocumentBlock::bytes_read
};

class OrderedEncoder {
 public:
  // `write` gets the results in the order of add(), by one thread at a time. With one thread, add() does all the work itself.
  OrderedEncoder(const Tokenizer& tokenizer, int64_t threads, std::function<void(const EncodedBlock&)> write);
  OrderedEncoder(const OrderedEncoder&) = delete;
  OrderedEncoder& operator=(const OrderedEncoder&) = delete;
  ~OrderedEncoder();  // drops the blocks that are not encoded yet

  // Waits while too many bytes are pending. Throws the error of the first block, in the order of add(), that could not be parsed, encoded
  // or written; no later block is written then.
  void add(DocumentBlock block);
  // Waits for all blocks and throws as add(). `stop` is polled: if it returns true, finish() returns at once.
  void finish(const std::function<bool()>& stop);

 private:
  struct Task {
    DocumentBlock block;
    EncodedBlock encoded;
    std::exception_ptr error;
    bool done = false;
  };
  EncodedBlock encode(const DocumentBlock& block) const;
  void start(int64_t threads);
  void work();
  void write_done_tasks(std::unique_lock<std::mutex>& lock);
  void rethrow_failure() const;

  const Tokenizer& tokenizer_;
  std::function<void(const EncodedBlock&)> write_;
  std::vector<std::thread> workers_;

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable task_added_, task_written_;
  std::deque<std::unique_ptr<Task>> tasks_;  // not written yet, in order
  size_t started_ = 0;                       // how many of tasks_, from the front, were started
  size_t pending_bytes_ = 0;                 // the sum of the sizes of tasks_' blocks
  std::exception_ptr failure_;
  bool writing_ = false, stopped_ = false;
};

}  // namespace based
