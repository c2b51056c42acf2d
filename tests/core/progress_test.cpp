#include "based/core/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "based/core/log.h"

namespace based {
namespace progress_test {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

// The output of `run` with options whose descriptor is a pipe.
template <class Run>
std::string written(ProgressOptions options, Run run) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  options.descriptor = ends[1];
  run(options);
  close(ends[1]);
  std::string text(65536, '\0');
  size_t size = 0;
  for (ssize_t got = 0; (got = read(ends[0], text.data() + size, text.size() - size)) > 0;) size += static_cast<size_t>(got);
  close(ends[0]);
  text.resize(size);
  return text;
}

TEST(Progress, PlainLinesOutsideOfATerminal) {
  const std::string text = written({.terminal_width = -1, .plain_interval = 0}, [](const ProgressOptions& options) {
    Progress progress("train", 200, options);
    progress.update(50, {{"loss", "2.314"}, {"tokens/s", "18.2k"}});
    progress.update(200, {{"loss", "1.5"}});
  });
  EXPECT_THAT(text, MatchesRegex("train   25 %  50/200  loss 2.314  tokens/s 18.2k  ETA [0-9.]+s\n"
                                 "train  100 %  200/200  loss 1.5  in [0-9.]+s\n"));
}

TEST(Progress, PlainLinesAreRareAndTheLastStateIsNeverLost) {
  const std::string text = written({.terminal_width = -1, .plain_interval = 3600}, [](const ProgressOptions& options) {
    Progress progress("train", 200, options);
    for (int i = 1; i <= 123; ++i) progress.update(i);
  });
  EXPECT_THAT(text, StartsWith("train   61 %  123/200"));
  EXPECT_THAT(text.substr(0, text.size() - 1), Not(HasSubstr("\n")));
}

TEST(Progress, RedrawsInPlaceOnATerminal) {
  const std::string text = written({.terminal_width = 60}, [](const ProgressOptions& options) {
    Progress progress("demo", 4, options);
    progress.update(2, {{"a", std::string(100, 'x')}});
  });
  EXPECT_THAT(text, StartsWith("\r\x1b[Kdemo  [------------------------------]    0 %"));
  EXPECT_THAT(text, HasSubstr("\r\x1b[Kdemo  [###############---------------]   50 %  2/4  a x"));
  EXPECT_THAT(text, EndsWith("x\n"));
  const size_t last = text.rfind('\r');
  EXPECT_EQ(text.size() - last - 5, 59u) << "cut to one column less than the terminal has";
}

TEST(Progress, QuietWritesNothing) {
  EXPECT_EQ(written({.quiet = true, .terminal_width = 60}, [](const ProgressOptions& options) { Progress("x", 2, options).update(1); }),
            "");
}

TEST(Progress, WhatEndsBeforeTheDelayDrawsNothing) {
  for (const int width : {-1, 60}) {
    EXPECT_EQ(written({.terminal_width = width, .plain_interval = 0, .delay = 3600},
                      [](const ProgressOptions& options) {
                        Progress progress("look", 2, options);
                        progress.update(1);
                        log_warning("above it");  // must not draw a line below the message
                        progress.update(2);
                      }),
              "");
  }
  EXPECT_THAT(written({.terminal_width = 60, .delay = 1e-9},
                      [](const ProgressOptions& options) {
                        Progress progress("look", 2, options);
                        usleep(1000);
                        progress.update(2);
                      }),
              HasSubstr("100 %  2/2"));
}

TEST(Progress, AResumedRunCountsItsOwnStepsForTheEta) {
  const std::string text = written({.terminal_width = -1, .plain_interval = 0}, [](const ProgressOptions& options) {
    Progress progress("train", 1'000'000, options, 999'990);
    usleep(20'000);
    progress.update(999'991);
  });
  EXPECT_THAT(text, MatchesRegex("train   99 %  999991/1000000  ETA (0\\.[1-9]|[1-9].*)s\n")) << "nine steps of 0.02 s or more";
}

TEST(Progress, UnknownTotalHasNoBar) {
  const std::string text = written({.terminal_width = 60}, [](const ProgressOptions& options) { Progress("read", 0, options).update(7); });
  EXPECT_THAT(text, AllOf(HasSubstr("read  7  in "), Not(HasSubstr("%")), Not(HasSubstr("ETA"))));
}

TEST(Progress, LogLinesGoAboveTheLine) {
  testing::internal::CaptureStderr();
  {
    Progress progress("train", 10, {.descriptor = 2, .terminal_width = 70});
    log_warning("the disk is nearly full");
    set_log_level(LogLevel::error);
    log_info("not shown");
    set_log_level(LogLevel::info);
  }
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, MatchesRegex(
                        "\r.\\[Ktrain[^\r\n]*\r.\\[K[0-9:]+ warning: the disk is nearly full\n\r.\\[Ktrain[^\r\n]*\r.\\[Ktrain[^\r\n]*\n"));
}

TEST(Progress, Formats) {
  EXPECT_EQ(format_duration(4.21), "4.2s");
  EXPECT_EQ(format_duration(59.97), "1m00s");
  EXPECT_EQ(format_duration(92), "1m32s");
  EXPECT_EQ(format_duration(11100), "3h05m");
  EXPECT_EQ(format_duration(1e300), "?");
  EXPECT_EQ(format_count(950), "950");
  EXPECT_EQ(format_count(0.5), "0.50");
  EXPECT_EQ(format_count(18200), "18.2k");
  EXPECT_EQ(format_count(999600), "1.00M");
  EXPECT_EQ(format_count(1.35e9), "1.35G");
  EXPECT_EQ(format_count(1e300), "1.00e+288T");
  EXPECT_EQ(format_count(-1e300), "-1.00e+288T");
  EXPECT_EQ(format_bytes(1e300), "9.09e+287 TiB");
  EXPECT_EQ(format_duration(-1e300), "?");
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(6.1 * 1024 * 1024), "6.1 MiB");
}

}  // namespace progress_test
}  // namespace based
