# Compiler, warnings, sanitizers, ccache.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
if(CMAKE_CXX_FLAGS_RELEASE STREQUAL "-O3 -DNDEBUG")  # what CMake sets where nobody else did
  set(CMAKE_CXX_FLAGS_RELEASE "-O2")
endif()
set(WEFT_SANITIZE "" CACHE STRING "sanitizers, e.g. address,undefined or thread")

# Numerics rule 1 (docs/numerics.md): g++ contracts a*b+c into FMA by default; here FMA exists only where it is written.
add_compile_options(-ffp-contract=off -fno-fast-math)
option(WEFT_BUILD_FUZZ "Build the fuzz targets of tests/fuzz; needs CMAKE_CXX_COMPILER=clang++" OFF)
if(WEFT_BUILD_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "WEFT_BUILD_FUZZ needs clang (libFuzzer): configure a fresh folder with -DCMAKE_CXX_COMPILER=clang++")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link,address -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=address)
endif()
if(WEFT_SANITIZE)
  add_compile_options(-fsanitize=${WEFT_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${WEFT_SANITIZE})
endif()

# Several files of a folder compiled as one read the headers and instantiate the templates once: two thirds of the time of a clean build.
# For many small rebuilds of one file, switch it off.
option(WEFT_UNITY "Compile the files of a folder in groups" ON)
if(WEFT_UNITY)
  set(CMAKE_UNITY_BUILD ON)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 6)
endif()

find_program(WEFT_CCACHE ccache)
if(WEFT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${WEFT_CCACHE})
endif()
set(WEFT_TEST_OPTIONS $<$<CONFIG:Release>:-O0>)
set(WEFT_WARNINGS -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Werror)
if(WEFT_BUILD_FUZZ)
  set(WEFT_WARNINGS)  # the code is held to g++'s warnings
endif()
# Programs find a libtorch outside the system's folders after installation too.
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
