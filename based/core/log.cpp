#include "based/core/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <memory>
#include <mutex>

#include "based/core/progress.h"
#include "based/core/text.h"

namespace based {
namespace {

class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    // Messages may quote text from files, so control characters are escaped and long lines shortened.
    const std::string text = shortened_lines(escape_controls({message.payload.data(), message.payload.size()}, true));
    spdlog::details::log_msg shown = message;
    shown.payload = text;
    formatter_->format(shown, line);
    write_above_progress({line.data(), line.size()});
  }
  void flush_() override {}
};

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>("based", std::make_shared<StderrSink>());
    made->set_pattern("%H:%M:%S %l: %v");
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

}  // namespace based
