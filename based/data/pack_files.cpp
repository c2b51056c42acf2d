#include <filesystem>

#include "based/core/interrupt.h"
#include "based/core/log.h"
#include "based/core/progress.h"
#include "based/data/document_shuffle.h"
#include "based/data/documents.h"
#include "based/data/ordered_encoder.h"
#include "based/data/shards.h"

namespace based {
namespace {

// The sizes of the files together; 0 if one is a pipe.
int64_t total_size(const std::vector<std::string>& files) {
  int64_t sum = 0;
  for (const std::string& file : files) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(file, error)) return 0;
    const auto size = std::filesystem::file_size(file, error);
    if (error) return 0;
    sum += static_cast<int64_t>(size);
  }
  return sum;
}

ProgressOptions progress_options(bool quiet) {
  ProgressOptions options;
  options.quiet = quiet;
  options.delay = kProgressDelay;
  return options;
}

class Packing {
 public:
  Packing(const Tokenizer& tokenizer, const std::string& folder, const PackSettings& settings)
      : tokenizer_(tokenizer), folder_(folder), settings_(settings), writer_(folder, tokenizer, settings.shard_tokens) {
    report_.end_of_text = tokenizer.end_of_text().has_value();
    if (settings.shuffle_seed) shuffle_.emplace(folder, *settings.shuffle_seed, tokenizer.vocab_size());
  }

  PackReport run(const std::vector<std::string>& files, TextFormat format) {
    encode(files, format);
    if (shuffle_) write_shuffled();
    writer_.finish();
    report_.shards = writer_.shards();
    report_.sources = writer_.sources();
    return report_;
  }

 private:
  void stop_if_interrupted() const {
    if (interrupted()) throw Error(folder_ + ": interrupted; no shards are left there");
  }

  void encode(const std::vector<std::string>& files, TextFormat format) {
    Progress progress("pack", total_size(files), progress_options(settings_.quiet));
    int64_t finished_files = 0;  // bytes of the files before the current one
    OrderedEncoder encoder(tokenizer_, settings_.threads, [&](const EncodedBlock& block) {
      write(block);
      progress.update(block.bytes_read, {{"text", format_bytes(static_cast<double>(report_.bytes))},
                                         {"tokens", format_count(static_cast<double>(report_.tokens))}});
    });
    try {
      for (const std::string& file : files) {
        int64_t size = 0;
        bool has_text = false;
        read_blocks(file, format, [&](DocumentBlock&& block) {
          stop_if_interrupted();
          size = block.bytes_read;
          has_text |= !block.bytes.empty();
          block.bytes_read += finished_files;
          encoder.add(std::move(block));
        });
        if (!has_text) log_warning(file + ": has no document");
        finished_files += size;
      }
    } catch (const Error&) {
      encoder.finish(interrupted);  // an error in an earlier block, which may still be pending, takes precedence
      throw;
    }
    encoder.finish(interrupted);
    stop_if_interrupted();
  }

  void write(const EncodedBlock& block) {
    size_t first = 0;
    for (const EncodedBlock::Document& document : block.documents) {
      const std::span<const int32_t> ids = std::span(block.ids).subspan(first, document.end - first);
      shuffle_ ? shuffle_->add(ids, document.source) : writer_.add_document(ids, document.source);
      first = document.end;
    }
    report_.documents += static_cast<int64_t>(block.documents.size());
    report_.empty += block.empty;
    report_.tokens += static_cast<int64_t>(block.ids.size());
    report_.bytes += block.text_bytes;
  }

  void write_shuffled() {
    Progress progress("shuffle", report_.documents, progress_options(settings_.quiet));
    int64_t documents = 0;
    shuffle_->drain([&](std::span<const int32_t> ids, std::string_view source) {
      stop_if_interrupted();
      writer_.add_document(ids, source);
      progress.update(++documents);
    });
  }

  const Tokenizer& tokenizer_;
  const std::string& folder_;
  const PackSettings& settings_;
  PackReport report_;
  ShardWriter writer_;
  std::optional<DocumentShuffle> shuffle_;
};

}  // namespace

PackReport pack_files(const std::vector<std::string>& files, const std::string& format, const Tokenizer& tokenizer,
                      const std::string& folder, const PackSettings& settings) {
  constexpr int64_t kMostThreads = 1024;
  const TextFormat text_format_of_all = text_format(format);
  if (files.empty()) throw UsageError("no files to pack");
  if (settings.threads < 1 || settings.threads > kMostThreads) {
    throw UsageError("the number of threads must be from 1 to " + std::to_string(kMostThreads) + ", got " +
                     std::to_string(settings.threads));
  }
  const InterruptScope signals;
  return Packing(tokenizer, folder, settings).run(files, text_format_of_all);
}

}  // namespace based
