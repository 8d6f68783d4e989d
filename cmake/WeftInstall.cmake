# weft_install(): the program, the archives, the headers and a CMake package. A project outside this tree says
# find_package(weft) and target_link_libraries(app weft::weft); examples/own_reward_and_loss is one, and a test builds it.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

function(weft_install)
  get_property(folders GLOBAL PROPERTY WEFT_FOLDERS)
  # One target that carries all archives in the order of their links. The program has the name `weft` already.
  add_library(weft_everything INTERFACE)
  set_target_properties(weft_everything PROPERTIES EXPORT_NAME weft)
  target_link_libraries(weft_everything INTERFACE weft_cli)
  # Inline functions of our headers must not be compiled to other arithmetic elsewhere (docs/numerics.md, rule 1).
  target_compile_options(weft_everything INTERFACE -ffp-contract=off)
  target_compile_features(weft_everything INTERFACE cxx_std_20)
  add_library(weft::weft ALIAS weft_everything)

  set(package ${CMAKE_INSTALL_LIBDIR}/cmake/weft)
  install(TARGETS weft RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(TARGETS ${folders} weft_everything EXPORT weftTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT weftTargets NAMESPACE weft:: DESTINATION ${package})
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/weft DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
          FILES_MATCHING PATTERN "*.h" PATTERN "*.inc" PATTERN "*test*" EXCLUDE)
  configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/weftConfig.cmake.in ${CMAKE_BINARY_DIR}/weftConfig.cmake
                                INSTALL_DESTINATION ${package})
  write_basic_package_version_file(${CMAKE_BINARY_DIR}/weftConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${CMAKE_BINARY_DIR}/weftConfig.cmake ${CMAKE_BINARY_DIR}/weftConfigVersion.cmake
          ${CMAKE_SOURCE_DIR}/cmake/FindWeftTorch.cmake DESTINATION ${package})
  install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
endfunction()
