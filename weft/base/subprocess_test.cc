#include "weft/base/subprocess.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "weft/base/clock.h"
#include "weft/base/error.h"

namespace weft {
namespace {

SubprocessOptions shell(const std::string& script) {
  SubprocessOptions options;
  options.argv = {"/bin/sh", "-c", script};
  return options;
}

std::string read_all(Subprocess& program) {
  std::string all, line;
  while (program.read_line(&line, 5) == PipeStatus::kDone) all += line + "|";
  return all;
}

bool process_exists(int64_t pid) { return ::kill(static_cast<pid_t>(pid), 0) == 0 || errno != ESRCH; }

TEST(Subprocess, EchoesLines) {
  SubprocessOptions options;
  options.argv = {"cat"};
  Subprocess cat(options);
  std::string line;
  for (const std::string text : {"one", "", "three \xff\x01"}) {
    ASSERT_EQ(cat.write_line(text, 5), PipeStatus::kDone);
    ASSERT_EQ(cat.read_line(&line, 5), PipeStatus::kDone);
    EXPECT_EQ(line, text);
  }
  EXPECT_EQ(cat.exit_text(), "running");
  cat.close_input();
  EXPECT_EQ(cat.read_line(&line, 5), PipeStatus::kClosed);
  EXPECT_TRUE(cat.finish(5));
  EXPECT_EQ(cat.exit_text(), "exit code 0");
}

TEST(Subprocess, LastLineNeedsNoEnd) {
  Subprocess program(shell("printf 'a\\n\\nb'"));
  EXPECT_EQ(read_all(program), "a||b|");
}

TEST(Subprocess, BigLinesInBothDirectionsDoNotBlock) {
  // The program answers and complains before it reads: all three pipes fill up while we write.
  Subprocess program(
      shell("head -c 1000000 /dev/zero | tr '\\0' y; echo; head -c 1000000 /dev/zero | tr '\\0' e >&2; "
            "read line; printf '%s' \"$line\" | wc -c"));
  std::string line;
  ASSERT_EQ(program.write_line(std::string(2000000, 'x'), 20), PipeStatus::kDone);
  ASSERT_EQ(program.read_line(&line, 20), PipeStatus::kDone);
  EXPECT_EQ(line, std::string(1000000, 'y'));
  ASSERT_EQ(program.read_line(&line, 20), PipeStatus::kDone);
  EXPECT_EQ(std::stol(line), 2000000);
}

TEST(Subprocess, ReadTimesOutAndGoesOn) {
  Subprocess program(shell("read a; echo got $a"));
  std::string line;
  EXPECT_EQ(program.read_line(&line, 0.05), PipeStatus::kTimeout);
  EXPECT_EQ(program.read_line(&line, 0), PipeStatus::kTimeout);
  ASSERT_EQ(program.write_line("it", 5), PipeStatus::kDone);
  EXPECT_EQ(program.read_line(&line, 5), PipeStatus::kDone);
  EXPECT_EQ(line, "got it");
}

TEST(Subprocess, WriteTimesOutWhenNobodyReads) {
  Subprocess program(shell("sleep 100"));
  EXPECT_EQ(program.write_line(std::string(1000000, 'x'), 0.05), PipeStatus::kTimeout);
  EXPECT_FALSE(program.finish(0.01));
  EXPECT_EQ(program.exit_code(), 128 + SIGKILL);
}

TEST(Subprocess, WritingToOneThatLeftIsAStatus) {
  Subprocess program(shell("exec <&-; echo closed; sleep 100"));
  std::string line;
  ASSERT_EQ(program.read_line(&line, 5), PipeStatus::kDone);
  EXPECT_EQ(program.write_line("x", 5), PipeStatus::kClosed);
  EXPECT_EQ(program.write_line("x", 5), PipeStatus::kClosed);
  sigset_t pending;
  sigpending(&pending);
  EXPECT_EQ(sigismember(&pending, SIGPIPE), 0);
}

TEST(Subprocess, KillsTheWholeGroupAndLeavesNoZombie) {
  Subprocess program(shell("sleep 100 & echo $!; wait"));
  std::string line;
  ASSERT_EQ(program.read_line(&line, 5), PipeStatus::kDone);
  const int64_t leader = program.pid(), child = std::stol(line);
  ASSERT_NE(getpgid(static_cast<pid_t>(leader)), getpgrp());
  program.kill();
  EXPECT_EQ(program.exit_text(), "signal 9 (Killed)");
  EXPECT_FALSE(process_exists(leader));
  // The grandchild is another process's to reap; give init a moment.
  for (int i = 0; i < 200 && process_exists(child); ++i) {
    siginfo_t info{};
    waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG);
    real_clock().sleep(0.005);
    if (std::filesystem::exists("/proc/" + std::to_string(child) + "/exe") == false) break;
  }
  std::error_code gone;
  EXPECT_TRUE(!process_exists(child) || std::filesystem::read_symlink("/proc/" + std::to_string(child) + "/exe", gone).empty());
}

TEST(Subprocess, DestructorKills) {
  int64_t pid = 0;
  {
    Subprocess program(shell("sleep 100"));
    pid = program.pid();
    EXPECT_TRUE(process_exists(pid));
  }
  EXPECT_FALSE(process_exists(pid));
}

TEST(Subprocess, KeepsTheLastLinesOfStderr) {
  SubprocessOptions options = shell("for i in 1 2 3 4 5; do echo line $i >&2; done; printf unfinished >&2; exit 3");
  options.stderr_lines = 3;
  std::string seen;
  options.on_stderr_line = [&](std::string_view line) { seen.append(line).push_back('|'); };
  Subprocess program(options);
  EXPECT_TRUE(program.finish(5));
  EXPECT_EQ(program.exit_code(), 3);
  EXPECT_EQ(program.exit_text(), "exit code 3");
  EXPECT_EQ(program.stderr_tail(), "line 4\nline 5\nunfinished");
  EXPECT_EQ(seen, "line 1|line 2|line 3|line 4|line 5|unfinished|");
}

TEST(Subprocess, NamesTheSignal) {
  Subprocess program(shell("kill -SEGV $$"));
  EXPECT_TRUE(program.finish(5));
  EXPECT_EQ(program.exit_text(), "signal 11 (Segmentation fault)");
  EXPECT_EQ(program.exit_code(), 139);
}

TEST(Subprocess, CannotStartIsAnErrorThatNamesTheProgram) {
  SubprocessOptions options;
  options.argv = {"no-such-program-here"};
  try {
    Subprocess program(options);
    FAIL();
  } catch (const SystemError& error) {
    EXPECT_STREQ(error.what(), "cannot start the program 'no-such-program-here': No such file or directory");
  }
  options.argv = {"/etc/passwd"};
  EXPECT_THROW(Subprocess{options}, SystemError);
  options.argv = {"true"};
  options.working_directory = "/no/such/folder";
  EXPECT_THROW(Subprocess{options}, SystemError);
}

TEST(Subprocess, EnvironmentAndDirectory) {
  SubprocessOptions options = shell("echo \"$WEFT_TEST_A:$HOME\"; pwd");
  options.environment = {{"WEFT_TEST_A", "b=c"}, {"HOME", "/nowhere"}};
  options.working_directory = "/usr";
  Subprocess program(options);
  EXPECT_EQ(read_all(program), "b=c:/nowhere|/usr|");
}

TEST(Subprocess, EndlessLineIsAnError) {
  SubprocessOptions options = shell("while :; do printf xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done");
  options.max_line_bytes = 100000;
  Subprocess program(options);
  std::string line;
  EXPECT_THROW(program.read_line(&line, 20), SystemError);
}

TEST(Subprocess, NoDescriptorLeaks) {
  const auto count = [] {
    int64_t n = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) n += entry.path().empty() ? 0 : 1;
    return n;
  };
  const int64_t before = count();
  for (int i = 0; i < 5; ++i) {
    Subprocess program(shell("exit 0"));
    program.finish(5);
  }
  EXPECT_EQ(count(), before);
  // The child gets 0, 1, 2 and nothing of ours, also while another program's pipes are open.
  Subprocess other(shell("cat"));
  Subprocess program(shell("exec ls /proc/self/fd"));
  EXPECT_EQ(read_all(program), "0|1|2|3|");  // 3 is the folder that ls reads
}

}  // namespace
}  // namespace weft
