#include "weft/base/memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace weft {
namespace {

namespace fs = std::filesystem;

TEST(Memory, WhatTheMachineHas) {
  EXPECT_EQ(meminfo_available("MemTotal:  100 kB\nMemFree: 7 kB\nMemAvailable:   42 kB\n"), 42 * 1024);
  EXPECT_EQ(meminfo_available("MemTotal:  100 kB\n"), -1);
  EXPECT_EQ(meminfo_available(""), -1);
  EXPECT_GT(available_memory(), 0);
}

TEST(Memory, SizesAreRead) {
  for (const auto& [text, bytes] : {std::pair<const char*, int64_t>{"12GB", 12'000'000'000}, {"800 MB", 800'000'000}, {"1.5GiB", 1'610'612'736},
                                    {"4096B", 4096}, {"0B", 0}, {"3kB", 3000}, {"2KiB", 2048}, {"1TB", 1'000'000'000'000}, {"7 B", 7}})
    EXPECT_EQ(parse_bytes(text), bytes) << text;
  for (const char* text : {"", "GB", "-1", "12", "1e3", "+1", "1G", "1gb", "1XB", "1GiBs", "1 GB x", "1e30", "nan", "1iB", "99999999TB"})
    EXPECT_EQ(parse_bytes(text), std::nullopt) << text;
}

TEST(Memory, WhatCgroupsLeave) {
  const fs::path root = fs::temp_directory_path() / "weft_memory_test";
  fs::remove_all(root);
  const auto write = [&](const char* file, const char* text) {
    fs::create_directories((root / file).parent_path());
    std::ofstream(root / file) << text;
  };
  const std::string where = root.string();
  write("a/b/memory.max", "max\n");
  write("a/b/memory.current", "500\n");
  EXPECT_EQ(cgroup_memory("0::/a/b\n", where), -1);
  write("a/memory.max", "2000\n");  // of the group above
  write("a/memory.current", "700\n");
  EXPECT_EQ(cgroup_memory("0::/a/b\n", where), 1300);
  write("a/b/memory.max", "600\n");
  EXPECT_EQ(cgroup_memory("0::/a/b\n", where), 100);
  write("a/b/memory.current", "900\n");  // above its limit for a moment
  EXPECT_EQ(cgroup_memory("0::/a/b\n", where), 0);
  write("memory/docker/memory.limit_in_bytes", "1000\n");
  write("memory/docker/memory.usage_in_bytes", "250\n");
  EXPECT_EQ(cgroup_memory("5:cpu:/x\n4:memory:/docker\n", where), 750);
  EXPECT_EQ(cgroup_memory("nonsense\n", where), -1);
  fs::remove_all(root);
}

}  // namespace
}  // namespace weft
