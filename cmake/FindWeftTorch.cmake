# libtorch as one imported target weft_torch, without torch's own CMake files: those of PyPI's wheels stop at the CUDA
# dialect with CMake 3.25, and Debian's add flags that we do not want. WEFT_TORCH_ROOT is the folder that holds include/ and
# lib/ of a wheel (tools/build_with_pip_torch.sh sets it); without it Debian's libtorch is used.
# Installed beside weftConfig.cmake, so that a project that uses weft finds the same libtorch.
set(WEFT_TORCH_ROOT "" CACHE PATH "folder with include/ and lib/ of a libtorch; empty: Debian's")
if(WEFT_TORCH_ROOT)
  set(_weft_torch_include ${WEFT_TORCH_ROOT}/include)
  # A wheel brings its own fmt headers, of another version than the library that is linked: ours have to be found first.
  if(EXISTS ${WEFT_TORCH_ROOT}/include/fmt)
    find_path(WEFT_FMT_INCLUDE NAMES fmt/format.h)
    file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/weft_before_torch)
    file(CREATE_LINK ${WEFT_FMT_INCLUDE}/fmt ${CMAKE_BINARY_DIR}/weft_before_torch/fmt SYMBOLIC)
    set(_weft_before_torch ${CMAKE_BINARY_DIR}/weft_before_torch)
  endif()
  set(_weft_torch_libdirs ${WEFT_TORCH_ROOT}/lib)
else()
  find_path(WEFT_TORCH_INCLUDE NAMES ATen/ATen.h)
  set(_weft_torch_include ${WEFT_TORCH_INCLUDE})
  set(_weft_torch_libdirs /usr/lib /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE})
endif()
foreach(name torch torch_cpu c10 torch_cuda c10_cuda)
  find_library(WEFT_LIB_${name} NAMES ${name} PATHS ${_weft_torch_libdirs} NO_DEFAULT_PATH)
endforeach()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(WeftTorch REQUIRED_VARS _weft_torch_include WEFT_LIB_torch_cpu WEFT_LIB_c10)
if(NOT TARGET weft_torch)
  add_library(weft_torch INTERFACE IMPORTED GLOBAL)
  target_include_directories(weft_torch SYSTEM INTERFACE ${_weft_before_torch} ${_weft_torch_include} ${_weft_torch_include}/torch/csrc/api/include)
  # Headers per operator: ATen.h with all of them costs each file that includes it 4 s more, even precompiled.
  target_compile_definitions(weft_torch INTERFACE AT_PER_OPERATOR_HEADERS)
  target_link_libraries(weft_torch INTERFACE ${WEFT_LIB_torch_cpu} ${WEFT_LIB_c10})
  if(WEFT_LIB_torch_cuda)
    # No symbol of ours refers to it, yet CUDA registers itself only where it is loaded: one flag, so that nothing is dropped
    # or reordered. What it needs from NVIDIA's wheels it finds by its own run path.
    target_link_libraries(weft_torch INTERFACE -Wl,--push-state,--no-as-needed,${WEFT_LIB_torch_cuda},${WEFT_LIB_c10_cuda},--pop-state)
  endif()
endif()
