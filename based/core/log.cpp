#include "based/core/log.h"

#include <fcntl.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <mutex>
#include <utility>

#include "based/core/descriptors.h"
#include "based/core/error.h"
#include "based/core/progress.h"
#include "based/core/text.h"

namespace based {
namespace {

constexpr const char* kPattern = "%H:%M:%S %l: %v";

// `Write` takes each line, as a std::string_view.
template <class Write>
class LineSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit LineSink(Write write) : write_(write) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    // Messages may quote text from files, so control characters are escaped and long lines shortened.
    const std::string text = shortened_lines(escape_controls({message.payload.data(), message.payload.size()}, true));
    spdlog::details::log_msg shown = message;
    shown.payload = text;
    formatter_->format(shown, line);
    write_({line.data(), line.size()});
  }
  void flush_() override {}

 private:
  const Write write_;
};

template <class Write>
std::shared_ptr<LineSink<Write>> make_sink(Write write) {
  return std::make_shared<LineSink<Write>>(write);
}

int log_copy = -1;  // the descriptor of the file that gets the messages too

void write_copy(std::string_view line) {
  if (log_copy >= 0) static_cast<void>(write_all(log_copy, line));  // a full disk must not end the program
}

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>("based", make_sink(write_above_progress));
    made->set_pattern(kPattern);
    return made;
  }();
  return *instance;
}

}  // namespace

void set_log_level(LogLevel level) {
  static constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::info, spdlog::level::warn, spdlog::level::err, spdlog::level::off};
  logger().set_level(kLevels[static_cast<int>(level)]);
}

void log_info(const std::string& message) { logger().info(message); }
void log_warning(const std::string& message) { logger().warn(message); }
void log_error(const std::string& message) { logger().error(message); }

void copy_log_to(const std::string& path) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0) throw Error(path + ": cannot be written: " + system_message(errno));
  if (log_copy >= 0) {
    close(std::exchange(log_copy, file));
    return;
  }
  log_copy = file;
  logger().sinks().push_back(make_sink(write_copy));
  logger().set_pattern(kPattern);
}

void copy_to_log(const std::string& line) { write_copy(line + "\n"); }

}  // namespace based
